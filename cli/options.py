"""A command's options as a dataclass: each field is a parameter of click, and typed for its reader.

    @options
    class LsOptions(CommandOptions):
        topic: str | None = argument(parse=topic_name)
        quick: bool = option("--quick", help="Omit columns that cost a request for each segment.")

The field's type says what click parses: `bool` is a flag, `tuple` a repeated option, `Literal` and
`StrEnum` are choices, and a mapping is a repeated NAME=VALUE. The help shows the fields in order,
those of a base class last.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Any, Final, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin

import click

from sidetier.cli.invocation import Invocation, configuration_parameters, invocation
from sidetier.cli.output import OutputFormat

T = TypeVar("T")
_KEY: Final = "parameter"


@dataclass(frozen=True, slots=True)
class _Parameter:
    """What a field adds to its name and type: flags, help and other attributes of click."""

    kind: type[click.Parameter]
    flags: tuple[str, ...]
    attributes: Mapping[str, Any]
    parse: Callable[[str], Any] | None = None


@dataclass(frozen=True, slots=True)
class _Group:
    """The parameters of another options class; `{}` in their flags and help texts is `part`."""

    part: str | None = None


def option(*flags: str, parse: Callable[[str], Any] | None = None, **attributes: Any) -> Any:  # noqa: ANN401 -- the field has the type
    """Make the field an option.

    Args:
        flags: As in `click.option`, without the parameter's name.
        parse: Converts the text, or each text of a repeated option; raises ValueError with a
            message for the user. `default` is then such a text.
        attributes: Further arguments of `click.Option`. A default is shown in the help.
    """
    return _Parameter(click.Option, flags, attributes, parse)


def argument(*, parse: Callable[[str], Any] | None = None, **attributes: Any) -> Any:  # noqa: ANN401 -- the field has the type
    """Make the field an argument, in the way of `option`."""
    return _Parameter(click.Argument, (), attributes, parse)


def group(part: str | None = None) -> Any:  # noqa: ANN401 -- the field has the type
    """Put the options of the field's class here; `{}` in their flags and help becomes `part`."""
    return _Group(part)


CONFIGURATION: Final[Any] = _Group()
"""For a field `call: Invocation`: `--config`, `--set` and `--debug`."""
OUTPUT: Final[Any] = option(
    "-o",
    "--output",
    default=OutputFormat.TABLE,
    envvar="SIDETIER_OUTPUT",
    help="Output format: a table for people, or JSON for scripts.",
)
"""For a field `output: OutputFormat`."""


@dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(option, argument, group)
)
def options(cls: type[T]) -> type[T]:
    """Make the class a frozen dataclass, whose fields `parameters` turns into click's."""
    for name in cls.__annotations__:
        declared = cls.__dict__.get(name)
        if isinstance(declared, _Parameter | _Group):
            setattr(cls, name, field(metadata={_KEY: declared}))
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


@options
class CommandOptions:
    """The options that most commands end with."""

    call: Invocation = CONFIGURATION
    output: OutputFormat = OUTPUT


class _Shape:
    """What click must know of a field's type."""

    def __init__(self, annotation: Any) -> None:  # noqa: ANN401 -- a type
        members = get_args(annotation) if get_origin(annotation) in {Union, UnionType} else ()
        self.is_optional = type(None) in members
        kind = next((one for one in members if one is not type(None)), annotation)
        origin = get_origin(kind)
        self.is_mapping = origin is Mapping
        is_sequence = origin is tuple and get_args(kind)[-1] is Ellipsis
        self.is_repeated = self.is_mapping or is_sequence
        self.kind = str if self.is_mapping else get_args(kind)[0] if is_sequence else kind

    def click_type(self) -> click.ParamType[Any] | type:
        """Return click's type of one value."""
        if get_origin(self.kind) is Literal:
            return click.Choice(get_args(self.kind))
        if isinstance(self.kind, type) and issubclass(self.kind, StrEnum):
            return _Member(self.kind)
        return click.Path(path_type=Path) if self.kind is Path else self.kind


class _Member(click.Choice[str]):
    """A member of an enumeration, by its value."""

    def __init__(self, members: type[StrEnum]) -> None:
        super().__init__([member.value for member in members])
        self._members = members

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> StrEnum:
        return self._members(super().convert(str(value), param, ctx))


class Parsed(click.ParamType[Any]):
    """A text that a function parses; the help shows the name in capitals."""

    def __init__(self, parse: Callable[[str], Any], name: str = "text") -> None:
        self._parse = parse
        self.name = name

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        """Return what the function makes of a text; a default may be parsed already."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def parameters(cls: type, prefix: str = "", part: str | None = None) -> Iterator[click.Parameter]:
    """Yield click's parameters of an options class, in the order of its fields."""
    for name, kind, declared in _declared(cls):
        if kind is Invocation:
            yield from configuration_parameters()
        elif isinstance(declared, _Group):
            yield from parameters(kind, f"{prefix}{name}_", declared.part or part)
        else:
            yield _parameter(declared, f"{prefix}{name}", _Shape(kind), part)


def _declared(cls: Any) -> Iterator[tuple[str, Any, _Parameter | _Group]]:  # noqa: ANN401 -- a dataclass
    for one in sorted(fields(cls), key=lambda field: field.name not in cls.__annotations__):
        yield one.name, one.type, one.metadata[_KEY]


def _parameter(declared: _Parameter, name: str, shape: _Shape, part: str | None) -> click.Parameter:
    attributes = dict(declared.attributes)
    if declared.parse is not None:
        attributes["type"] = Parsed(declared.parse)
    elif shape.kind is bool:
        attributes.setdefault("is_flag", True)
    else:
        attributes.setdefault("type", shape.click_type())
    if declared.kind is click.Argument:
        count = {"nargs": -1} if shape.is_repeated else {"required": not shape.is_optional}
        return click.Argument([name], **count | attributes)
    implied: dict[str, Any] = {"multiple": shape.is_repeated}
    if shape.is_mapping:
        implied |= {"metavar": "NAME=VALUE", "callback": _pairs}
    if attributes.get("default") is not None:
        implied["show_default"] = True
        if isinstance(attributes["default"], StrEnum):  # click would show the member's name
            attributes["default"] = attributes["default"].value
    flags = [_named(flag, part) for flag in declared.flags]
    attributes["help"] = _named(attributes["help"], part)
    return click.Option([name, *flags], **implied | attributes)


def _named(text: str, part: str | None) -> str:
    return text if part is None else text.replace("{}", part)


def _pairs(
    _context: click.Context, option: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    """Split each `name=value`; a name may occur once."""
    values: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param=option)
        if name.strip() in values:
            raise click.BadParameter(f"{name.strip()} is given twice", param=option)
        values[name.strip()] = value
    return values


def filled(cls: type[T], context: click.Context, prefix: str = "") -> T:
    """Return the options that click has parsed."""
    values: dict[str, Any] = {}
    for name, kind, declared in _declared(cls):
        if kind is Invocation:
            values[name] = invocation(context)
        elif isinstance(declared, _Group):
            values[name] = filled(kind, context, f"{prefix}{name}_")
        else:
            values[name] = context.params[prefix + name]
    return cls(**values)
