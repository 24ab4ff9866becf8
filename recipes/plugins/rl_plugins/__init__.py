"""What a recipe adds to verl's workers, through verl's own extension point `actor_rollout_ref.model.external_lib`.

`recipes/plugins` is on the path of a run's processes; nothing upstream is edited. Importing the package switches on:

- `rollout_seeds`: samples that depend on the seed, the step and the rank alone, so that a resumed run repeats them;
- `optimizer_resume`: Adam's moments, which verl saves and does not load;
- `rl_collections`: garbage collections that do not walk everything that was imported.
"""

import rl_collections

from rl_plugins import optimizer_resume, rollout_seeds

optimizer_resume.install()
rollout_seeds.install()
rl_collections.install()
