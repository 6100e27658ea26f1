"""A backend that writes into its inputs: seen in the operator's call, and no number of a score rests on it."""

from __future__ import annotations

import pytest
import torch
from xcfg.errors import WorkerError
from xcfg.plugin.operators import BoundOperator
from xcfg.schema.operators import OperatorBinding


def bound(function, operation="selected_logprob"):
    return BoundOperator(
        OperatorBinding(
            operation=operation, side="training", requested="mine", backend_id="mine", factory="mine:make", options={}
        ),
        function,
    )


def right(logits, selected):
    return logits.log_softmax(-1).gather(-1, selected[:, None])[:, 0]


def zeroing(logits, selected):
    found = right(logits, selected)
    logits.mul_(0)
    return found


def shifting(logits, selected):
    found = right(logits, selected)
    selected.add_(1)
    return found


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(("function", "place"), [(zeroing, 0), (shifting, 1)])
def test_an_input_that_was_written_to_is_refused(function, place, inference):
    """If this fails, columns of a score are of logits that the model never had, beside a value that is right."""
    with torch.inference_mode(inference), torch.no_grad():
        logits, selected = torch.randn(5, 64), torch.randint(0, 60, (5,))
        logits[0, 0] = torch.nan
        with pytest.raises(WorkerError, match=f"'mine' wrote into its argument {place}"):
            bound(function)(logits, selected)
        again = {"logits": torch.randn(5, 64), "selected": torch.randint(0, 60, (5,))}
        with pytest.raises(WorkerError, match=f"'mine' wrote into its argument {place}"):
            bound(function)(**again)


@pytest.mark.parametrize("inference", [False, True])
def test_an_input_that_was_read_is_not(inference):
    """If this fails, a backend is refused for a NaN in the logits, or for reading them."""
    with torch.inference_mode(inference), torch.no_grad():
        logits = torch.randn(3, 64)
        logits[1] = torch.nan
        assert bound(right)(logits, torch.tensor([1, 2, 3])).shape == (3,)
