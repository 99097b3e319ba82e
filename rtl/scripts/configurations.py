"""Reads rtl/configurations.toml."""

import tomllib
from pathlib import Path

BITS = ("TermsLast", "HashRing")


def read():
    """The parameters of each configuration, by its name and theirs."""
    with (Path(__file__).resolve().parents[1] / "configurations.toml").open("rb") as file:
        entries = tomllib.load(file)

    def parameters(name):
        entry = dict(entries[name])
        inherited = parameters(entry.pop("like")) if "like" in entry else {}
        return inherited | {key: value for key, value in entry.items() if key[0].isupper()}

    return {name: parameters(name) for name in entries}


def flags(parameters, *left_out):
    """The parameters as yosys takes them."""
    return " ".join(f"-G{name}={bit(name, value)}" for name, value in parameters.items()
                    if name not in left_out)


def bit(name, value):
    return f"1'b{value}" if name in BITS else value
