"""The append-only store: what a run leaves behind, sealed with SHA-256, and how anybody checks it offline.

    runs/<experiment>/
      experiment.json  plan.jsonl         then experiment-2.json, plan-2.jsonl ...: revisions
      rollouts/<sha256>/                  manifest.json, rollout.safetensors
      scores/<key>/                       one side score; `<key>.r2` ... after an invalid or a repeated one
      cases/<case>/attempt-0001/ ...      one judged or failed attempt, with copies of the scores it judged
      analysis/<digest>.json
      ended/<digest>.json                 what stood for each case when a run ended

| module | what it knows |
|---|---|
| layout | names: which are safe, what each status requires |
| atomic | publishing whole or not at all: fsync, rename without overwriting |
| reading | opening what was stored without trusting a name |
| seals | COMPLETE: its bytes, and a sealed folder against it |
| revisions | experiment*.json and plan*.jsonl |
| checking | one sealed folder with everything around it |
| busy | which runs are at work here right now; no evidence |
| ended | what was planned and never ended, what was sealed and is gone |
| stored, store | the writing side, and resume |
| tensors | `.pt` files: columns and plain metadata |
| verify | `check_seals`, for `xcfg verify --seals-only` |

Nothing here imports torch except the two functions that read and write `.pt` files.
"""
