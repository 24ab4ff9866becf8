"""Instruments of a rehearsal in verl's workers, through `actor_rollout_ref.model.external_lib`. They change nothing.

Importing the package switches them on. They write JSON lines to `$RL_PROBES/<name>-rank<N>.jsonl`:

- `generation`: before a rollout the random state, after it a fingerprint of every prompt and answer;
- `transfer`: fingerprints of the first weights that the trainer sends to the rollout;
- `features`: the names of MindSpeed's features that are on;
- `log-probs/`: tokens and log-probabilities of each step, as tensors.

With `RL_PROBES_EARLIER` a rollout samples with the random state that the run of those journals had at the same step:
what verl does not keep in checkpoints must not hide what it does keep.

`RL_PROBES_ALSO` names the module that the recipe itself gives as `external_lib`.
"""

import importlib
import os

import rl_collections

from rl_probes import features, generation, log_probs, transfer

rl_collections.install()  # a toy's step is mostly garbage collection otherwise
features.install()
generation.install()
log_probs.install()
transfer.install()
if os.environ.get("RL_PROBES_ROLLOUT") == "hf":
    from rl_probes import stand_in

    stand_in.install()
if os.environ.get("RL_PROBES_ALSO"):
    importlib.import_module(os.environ["RL_PROBES_ALSO"])
