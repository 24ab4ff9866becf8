"""The data that a recipe trains on and the function that rewards it."""

import ast
from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig, ListConfig, OmegaConf

from recipes.compose import Recipe
from recipes.preflight.advice import make_or_set


def files(recipe: Recipe) -> Iterator[str]:
    """Parquet files that are whole and have the columns verl reads."""
    config = recipe.config
    wanted = {str(config.data.prompt_key), str(config.data.reward_fn_key)}
    for key in ("data.train_files", "data.val_files"):
        for path in _paths(config, key):
            if not path.is_file():
                yield f"{key}: expected a parquet file, found no {path}; {make_or_set(recipe, 'data', key)}"
                continue
            footer, fault = _footer(path)
            if fault:
                yield f"{path}: expected a whole parquet file, found {fault}; make or fetch it anew"
            elif missing := wanted - set(footer.schema.to_arrow_schema().names):
                columns = ", ".join(footer.schema.to_arrow_schema().names)
                yield f"{path}: expected a column {' and '.join(sorted(missing))}, found {columns}; set data.prompt_key"


def reward(recipe: Recipe) -> Iterator[str]:
    """The reward function's file and the function in it."""
    config = recipe.config
    given, name = config.custom_reward_function.path, config.custom_reward_function.name
    if given is None or "://" in given:
        return
    path = Path(given).expanduser()
    key = "custom_reward_function.path"
    if not path.is_file():
        yield f"{key}: expected a Python file, found no {path}; set {key}"
        return
    try:
        body = ast.parse(path.read_text()).body
    except (OSError, SyntaxError, ValueError) as error:
        yield f"{path}: expected Python, found: {error}; correct it"
        return
    if name not in _defined(body):
        yield f"{path}: expected it to define {name}, found no such function; set custom_reward_function.name"


def training_rows(config: DictConfig) -> int | None:
    """Rows in the training files; None where one cannot be read."""
    rows = 0
    for path in _paths(config, "data.train_files"):
        footer, fault = _footer(path)
        if fault:
            return None
        rows += footer.num_rows
    return rows or None


def _paths(config: DictConfig, key: str) -> list[Path]:
    given = OmegaConf.select(config, key)
    each = list(given) if isinstance(given, ListConfig) else [given]
    return [Path(one).expanduser() for one in each if isinstance(one, str) and "://" not in one]


def _footer(path: Path) -> tuple[object, str | None]:
    """A parquet file's metadata, and what is wrong with the file."""
    from pyarrow import ArrowException
    from pyarrow.parquet import read_metadata

    try:
        size, footer = path.stat().st_size, read_metadata(path)
    except (ArrowException, OSError) as error:
        return None, str(error).strip().splitlines()[0]
    end = max((_end(footer.row_group(group)) for group in range(footer.num_row_groups)), default=0)
    return footer, None if end <= size - 8 else f"{size} bytes where its index needs {end + 8}"


def _end(group) -> int:
    """Where a row group's last column ends in the file."""
    columns = (group.column(index) for index in range(group.num_columns))
    starts = ((column.dictionary_page_offset or column.data_page_offset, column) for column in columns)
    return max(min(start, column.data_page_offset) + column.total_compressed_size for start, column in starts)


def _defined(body: list[ast.stmt]) -> set[str]:
    names = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names
