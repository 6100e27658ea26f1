"""GRPO of TRL on a CPU, captured: python train.py FOLDER

`sample` is the rollout: cached decode in padded batches. The trainer scores the same tokens with its own forward,
because steps_per_generation is no divisor of gradient_accumulation_steps. Every generation is captured before its
first update, beside the weights that both sides had.
"""

import sys

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer
from xcfg_dumps.capture import Capture

WORDS = ["<pad>", "<eos>", *(f"w{number}" for number in range(94))]
PROMPTS = ["w1 w2 w3", "w4 w5 w6 w7 w8 w9 w10", "w11", "w12 w13 w14 w15 w16"]


class CapturedTrainer(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        folder, step = self.args.output_dir, self.state.global_step
        self.model.save_pretrained(f"{folder}/models/step-{step}")
        capture = Capture(
            f"{folder}/captures/step-{step}",
            checkpoint=f"{folder}/models/step-{step}",
            weight_version=step,
            sampling={"temperature": self.temperature},
        )
        capture.trl(output).write()
        return output


def sample(prompts, trainer):
    """Return token ids and the log probabilities with which they were sampled, as TRL asks of a rollout_func."""
    tokenizer = trainer.processing_class
    batch = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt", return_token_type_ids=False)
    made = trainer.model.generate(
        **batch,
        do_sample=True,
        temperature=trainer.temperature,
        top_k=0,
        max_new_tokens=32,
        return_dict_in_generate=True,
        output_logits=True,
    )
    ids = made.sequences[:, batch["input_ids"].shape[1] :]
    logits = torch.stack(made.logits, dim=1).float() / trainer.temperature
    scores = logits.log_softmax(dim=-1).gather(-1, ids[..., None])[..., 0]
    ends = [row.index(1) + 1 if 1 in row else len(row) for row in ids.tolist()]
    return {
        "prompt_ids": tokenizer(prompts)["input_ids"],
        "completion_ids": [row[:end] for row, end in zip(ids.tolist(), ends, strict=True)],
        "logprobs": [row[:end] for row, end in zip(scores.tolist(), ends, strict=True)],
    }


def variety(completion_ids, **_):
    """The reward: how many different tokens a completion has."""
    return [float(len(set(row))) for row in completion_ids]


def main(folder, rollout=sample, temperature=1.0):
    torch.manual_seed(0)
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    settings = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=8,
        num_generations=4,
        steps_per_generation=2,
        gradient_accumulation_steps=1,
        max_steps=4,
        learning_rate=1e-2,
        temperature=temperature,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    CapturedTrainer(
        model=LlamaForCausalLM(config),
        reward_funcs=variety,
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
        processing_class=tokenizer,
        rollout_func=rollout,
    ).train()


if __name__ == "__main__":
    main(*sys.argv[1:])
