"""Digests of what the package does: runs, trajectories, pages, answers of shipped policies.

They say whether a change that should alter nothing has altered something, and where. `python -m tests.golden` checks
all of them (`make golden`), `python -m tests.golden record` writes those that are missing.

| group | what is digested |
|---|---|
| runs | `requests.parquet` column by column and `summary.json` key by key, of short runs of every policy |
| trajectories | observations, masks, rewards and infos of each environment, single and vector |
| pages | the files of `docs/envs` |
| policies | the answers of each shipped policy to 1,000 observations |

Digests are of plain values with public names: columns of tables, keys of JSON files, keys of observations and infos.
Float64 values enter with 9 significant digits, because numpy's vectorised exp, log and cos, from which arrivals and
lengths are drawn, differ in the last bits from one CPU to another. Float32 observations enter as they are.
"""
