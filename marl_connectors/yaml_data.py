"""Reads YAML: settings that users write, and the tasks of the zoo."""

from __future__ import annotations

import re
from typing import Any, Final

from marl_connectors.errors import describe_error
from marl_connectors.packages import require_packages

MAX_NODES: Final = 100_000
"""How many values a YAML file may have, where each alias counts as what it stands for."""


def parsed_yaml(text: str) -> Any:
    """Reads YAML, in which ``1e-3`` is a number and no key may be twice in a mapping.

    Raises:
        MissingDependencyError: If PyYAML is not installed.
        ValueError: If it is something else. The message says what is wrong, and where.
    """
    require_packages("the command line", "yaml")
    import yaml

    class Loader(yaml.SafeLoader):
        """PyYAML reads YAML 1.1, where a number such as 1e-3 is a text."""

        def get_single_node(self) -> Any:
            root = super().get_single_node()
            if root is not None:
                _check_nodes(root)
            return root

    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
    )
    try:
        return yaml.load(text, Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise ValueError(f"{error.problem}{where}.") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from error
    except (LookupError, AttributeError, OverflowError) as error:  # a tag such as !!int with a text that does not fit
        raise ValueError(f"a value does not fit its tag: {describe_error(error)}") from error


def _check_nodes(root: Any) -> None:
    """Checks nodes of YAML: their keys, and how many they are if each alias is replaced by what it stands for.

    Raises:
        yaml.MarkedYAMLError: If a node contains itself, a key is no scalar or is twice in a mapping, or the nodes are
            too many.
    """
    import yaml

    sizes: dict[Any, int] = {}  # 0 for the nodes around the one that is looked at

    def check(is_wrong: bool, problem: str, node: Any) -> None:
        if is_wrong:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)

    def size(node: Any) -> int:
        if node not in sizes:
            sizes[node] = 0
            children = [] if isinstance(node, yaml.ScalarNode) else list(node.value)
            if isinstance(node, yaml.MappingNode):
                seen = set()
                for key, _ in node.value:
                    check(not isinstance(key, yaml.ScalarNode), "expected a text or a number as key", key)
                    check(key.value in seen, f"{key.value!r} is there twice", key)
                    seen.add(key.value)
                children = [value for _, value in node.value]
            sizes[node] = 1 + sum(map(size, children))
        check(sizes[node] == 0, "an anchor contains itself", node)
        check(sizes[node] > MAX_NODES, f"it has more than {MAX_NODES:,} values, its aliases included", node)
        return sizes[node]

    size(root)
