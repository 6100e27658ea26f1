"""What the objects behind a `factory` string implement. Types only; importing this imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from xcfg.identity.rollout import Rollout
    from xcfg.plugin.provide import Profile
    from xcfg.schema.experiment import Experiment
    from xcfg.schema.knobs import KnobDefinition
    from xcfg.schema.matrix import MatrixRow, MatrixRowDefinition
    from xcfg.schema.plan import ExperimentCase, PlanIssue
    from xcfg.schema.worker import BuildReport, ScoreReport, ScoreRequest, WorkerSpec


@dataclass(frozen=True)
class RankContext:
    """Where an adapter runs: its rank, the world, its device string (`cpu`, `cuda:0`) and a scratch folder.

    rendezvous: a `file://` URL that every rank of this worker shares, for init_process_group.
    """

    rank: int
    world_size: int
    device: str
    scratch: Path
    rendezvous: str


@runtime_checkable
class RuntimeAdapter(Protocol):
    """One rank of one engine, inside a worker process. Constructed without arguments."""

    def build(self, spec: WorkerSpec, context: RankContext) -> BuildReport:
        """Build the engine; return the applications of every construction and process knob, read back."""
        ...

    def score(self, request: ScoreRequest, rollout: Rollout) -> tuple[ScoreReport, dict[str, torch.Tensor]]:
        """Score all sequences in one arm; flat CPU columns over T tokens (schema.worker.SCORE_COLUMNS).

        A rank of role `none` returns no columns. The request-lifecycle knobs come with the request.
        """
        ...

    def close(self) -> None:
        """Release the engine; called once, also after an error."""
        ...


@runtime_checkable
class Generator(Protocol):
    """An adapter that can sample; needed for `xcfg freeze`."""

    def generate(self, request: ScoreRequest, prompts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return one answer per prompt, in the order of `prompts`; running.generated checks them.

        A prompt has either `text` (str) or `token_ids` (list of int), and perhaps `id` (str). request.generate holds
        the prompts once more and `max_new_tokens`, `temperature` (above 0), `top_k` (0: off), `top_p` (1: off),
        `seed`, `logprobs_mode` (raw_logprobs | processed_logprobs) and `stop_ids` (token ids that end a sequence).

        An answer has the fields

            prompt_ids      list of int, at least one: what entered the model; for `token_ids` the same ids
            token_ids       list of int, what was sampled after it; a stop id that ended it is its last token
            logprobs        list of float, nats, one finite value per entry of token_ids
            transforms      list of str, the ordered transforms under which `logprobs` were made, e.g.
                            ["temperature:0.7", "top_p:0.9"]; empty under raw_logprobs
            finish_reason   str, `stop` after a stop id, `length` at max_new_tokens; may be missing
        """
        ...


class SelectedLogprob(Protocol):
    """The semantic operator `selected_logprob`."""

    def __call__(self, logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        """Logits [N, V] floating, selected int64 [N] -> log probabilities float32 or float64 [N]."""
        ...


@runtime_checkable
class ShardedLogprob(Protocol):
    """A `selected_logprob` that can be handed this rank's columns instead of all of them.

    A runtime whose vocabulary is split looks for this form, calls `place` once its ranks are joined, sets `vocab`
    before a call, and hands over local logits [N, V / ranks] with global ids. To an operator without it, it hands
    gathered logits. Not placed, the operator stands alone and its columns are the whole vocabulary.

    vocab: entries that take part; columns from there on are hidden, None hides nothing. summed: how many columns, over
    all ranks, the last call left unmasked, counted in what it summed.
    """

    vocab: int | None
    summed: int

    def place(self, group: Any, start: int) -> None:
        """Take the process group of the shards (None: one rank) and the global id of the first local column."""
        ...

    def __call__(self, logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        """Logits [N, V / ranks] floating, selected int64 [N] global ids -> [N], nats, equal on every rank."""
        ...


class StatedLogprob(Protocol):
    """A `selected_logprob` that says what its last call did; xcfg.plugin.stated adds it up over a score.

    A runtime reports that, and reads options back from it: calls of one score that state different values did neither.

    stated: `options` maps the name of an option to the value that ran; `vocabulary` is {"policy", "real", "padded"}, as
    the gate over vocabularies takes it. transforms: what it does to logits, in the spelling of a manifest. scored_ids:
    int64 [N], the ids whose values it returned; None where they are those it was handed. A `linear_selected_logprob`
    says the same of what it is handed.

    An option that a call cannot show is left out of what it states, and one that no call shows did not run. Where that
    depends on the number of rows, `stated` has `rows`, and in `by_rows` the names of those options: of them the calls
    with the most rows stand for a score. A backend may have `acts_where`, option -> what it needs beside it in words,
    which is told where another value ran than was asked for.
    """

    stated: dict[str, Any]
    transforms: tuple[str, ...]
    scored_ids: torch.Tensor | None

    def __call__(self, logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        """As SelectedLogprob."""
        ...


class TrainedLogprob(StatedLogprob, Protocol):
    """A StatedLogprob with options that no log probability depends on.

    shown_by: option -> what alone can show it, `backward` or `entropy`. They are in the `options` stated of a call once
    its backward has run, or `entropy` after it; a runtime reads them back from nothing else.
    """

    shown_by: Mapping[str, str]

    def entropy(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits [N, V] -> [N], nats, of the distribution whose log probabilities a call returns."""
        ...


class HeadColumns(Protocol):
    """A `linear_selected_logprob` that says more of its logits than their log probability, where a score asks for it.

    offers: names among schema.worker.OPTIONAL_COLUMNS.
    """

    offers: tuple[str, ...]

    def columns(self, hidden: torch.Tensor, weight: torch.Tensor, selected: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return each column [N] that it offers, of the logits that a call with the same arguments forms."""
        ...


@runtime_checkable
class DumpReader(Protocol):
    """Reads a foreign dump into canonical columns, in bounded memory."""

    def detect(self, path: Path) -> str:
        """Return why this reader recognises `path`, or an empty string."""
        ...

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield batches: canonical column name -> array, equal lengths. Raises ArtifactError."""
        ...


@runtime_checkable
class ProfileExpander(Protocol):
    """Turns the experiment of a file into the one that a profile stands for (`--profile NAME`)."""

    def __call__(
        self,
        profile: Profile,
        experiment: Experiment,
        baseline: ExperimentCase,
        knobs: Mapping[str, KnobDefinition],
        root: Path | None,
    ) -> tuple[Experiment, tuple[str, ...], tuple[PlanIssue, ...]]:
        """Return the experiment to plan, the names of its slices whose cases belong to the profile, and issues.

        baseline: of the file, complete. root: the folder of runs when something is to run, None when it is only
        planned. Raises NothingSelectedError, with the reason, when the profile has no case here.
        """
        ...


@contextmanager
def _temporary() -> Iterator[Path]:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        yield Path(folder)


@dataclass(frozen=True)
class MatrixRequest:
    """One matrix to run on one frozen replay.

    file: the experiment whose rollout and baseline are used. rows: what to run, in this order. backend: of the module's
    operator; empty: its reference. options: keywords for `xcfg.run`. plugins: what is installed. scratch: gives, as a
    context, a new folder in the output root for what is captured: removed at the end, after a kill by the next matrix.
    """

    file: Path
    rows: tuple[MatrixRowDefinition, ...]
    plugins: Any
    backend: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    scratch: Callable[[], AbstractContextManager[Path]] = _temporary


@runtime_checkable
class MatrixRunner(Protocol):
    """Runs the rows of one debug matrix."""

    def __call__(self, request: MatrixRequest) -> tuple[MatrixRow, ...]:
        """Return one record per row and edge (and phase), gates first. Raises XcfgError where there is no replay.

        An unmet gate gives `comparable` false and no number, to itself and to every row behind it.
        """
        ...
