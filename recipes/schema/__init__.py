"""Which configuration keys verl, MindSpeed and Megatron have at each matrix's commits, with types, defaults, choices.

    load("verl", "performance")["actor_rollout_ref.rollout.n"]    # Field(type='int', default=1, choices=None, ...)

The data beside this module is generated, see `generate.py`; no upstream source is needed to read it.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import matrix as matrices
from errors import UserError

DATA = Path(__file__).resolve().parent / "data"

# What can be asked for: the component of matrix.toml it belongs to and the table in that component's data.
PROJECTS = {
    "verl": ("verl", "config"),  # ppo_megatron_trainer, dotted keys
    "mindspeed": ("mindspeed", "arguments"),  # what override_transformer_config takes beside Megatron's fields
    "megatron": ("megatron-lm", "TransformerConfig"),  # the same for Megatron: override_transformer_config
    "megatron.mla": ("megatron-lm", "MLATransformerConfig"),  # its fields for latent attention included
    "megatron.ddp": ("megatron-lm", "DistributedDataParallelConfig"),  # override_ddp_config
    "megatron.optimizer": ("megatron-lm", "OptimizerConfig"),  # optim.override_optimizer_config
}
# Other names of a component: the cpu matrix has Megatron's package instead of its source tree.
ALIASES = {"megatron-lm": "megatron-core"}


@dataclass(frozen=True)
class Field:
    """One key. `type` is the annotation, such as `Optional[int]`; "" where nothing declares one.

    `default` is what JSON can hold; text of the expression where it is an expression (`torch.float32`).
    `listed` is False for a key that a dataclass takes but no default lists: Hydra then wants `+` before it.
    """

    type: str
    default: object
    choices: tuple[object, ...] | None = None
    listed: bool = True


@cache
def load(project: str, matrix: str) -> dict[str, Field]:
    """The keys of a project (see PROJECTS) at a matrix's commit; empty where the matrix has no such component.

    UserError for an unknown matrix, or a commit for which there is no data yet.
    """
    component, table = PROJECTS[project]
    file = _file(component, matrix)
    if file is None:
        return {}
    written = json.loads(file.read_text(encoding="utf-8"))
    return {key: _field(values) for key, values in written["tables"][table].items()}


def file_name(component: str, commit: str) -> str:
    """The name of the data file of a component at a commit."""
    return f"{component}-{commit[:7]}.json"


def _file(component: str, matrix: str) -> Path | None:
    components = matrices.load(matrix).components
    found = components.get(component) or components.get(ALIASES.get(component, component))
    if found is None or found.install == "absent":
        return None
    file = DATA / file_name(component, found.commit or "")
    if not file.is_file():
        raise UserError(
            f"expected the keys of {component} at {found.commit} ({matrix} in matrix.toml), found no {file.name}; "
            f"generate it: python -m recipes.schema.generate {component} SOURCE {found.commit}"
        )
    return file


def _field(values: dict) -> Field:
    choices = values.get("choices")
    return Field(
        values.get("type", ""),
        values.get("default"),
        None if choices is None else tuple(choices),
        values.get("listed", True),
    )
