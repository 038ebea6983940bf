"""Digests of what the package does: runs, trajectories, answers of shipped policies.

They say whether a change that should alter nothing has altered something, and where. `python -m tests.golden` checks
all of them (`make golden`), `python -m tests.golden record` writes those that are missing.

| group | what is digested |
|---|---|
| doors | arrivals, lengths, prefixes and cost tables: what enters the compiled core |
| runs | `requests.parquet` column by column and `summary.json` key by key, of short runs of every policy |
| trajectories | observations, masks, rewards and infos of each environment, single and vector |
| policies | the answers of each shipped policy to 1,000 observations |

Digests are of plain values with public names: columns of tables, keys of JSON files, keys of observations and infos.
Floats enter as they are, to the last bit: what differs from one processor to another is rounded before anything is
built on it (`ooco_gym.rounding`).
"""
