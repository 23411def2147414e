"""Task graphs as values: a graph and its JSON form, and what a check of it finds.

    graph = residentd.Graph.from_json("feature.json")
    print(graph.to_json())

docs/graph_format.md describes the format. graph_builder.py makes graphs, graphs.py runs them.

Thread safety: nothing here changes after it was made.
"""

from __future__ import annotations

import json
import os
import weakref
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Tuple, Union

from google.protobuf.descriptor import FieldDescriptor

from .descriptors import enum_names, message
from .errors import Error, InvalidArgument, WrongType, read_file, split_fix

if TYPE_CHECKING:
    from .client import Client

# resident.v1.GraphTensor.Kind: {"input": 5, ...}.
KINDS: Dict[str, int] = {
    name.lower(): number for number, name in enum_names("resident.v1.GraphTensor.Kind", "KIND_").items()
}
_DEPENDENCIES = enum_names("resident.v1.GraphDependency.Kind", "KIND_")
_MAX_NUMBER = 1 << 53  # Readers of JSON may take numbers as float64.
# Of the class: the descriptors of protobuf 4.21 do not have the constants.
_CPP_TYPES_OF_64_BITS = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)


class Graph:
    """A task graph. `message` is the resident.v1.Graph, which must not be changed."""

    def __init__(self, message: Any, client: "Optional[Client]" = None) -> None:
        """client: who draws it in a notebook."""
        self.message = message
        self.name = str(message.name)
        self._client = None if client is None else weakref.ref(client)

    def _repr_svg_(self) -> Optional[str]:
        """The picture in a notebook, by the daemon of the GraphBuilder's client. None, which shows the
        repr: there is no such client, or the graph has errors."""
        client = None if self._client is None else self._client()
        try:
            return None if client is None else client.graphs.render(self, "svg")
        except Error:
            return None

    def __getstate__(self) -> Dict[str, Any]:
        return dict(self.__dict__, _client=None)

    @classmethod
    def from_json(cls, source: Union[str, "os.PathLike[str]"]) -> "Graph":
        """The graph of a text that begins with "{", or of the file with this path. InvalidArgument if it
        cannot be parsed; only Graphs.validate() finds what is wrong with the graph itself."""
        from google.protobuf import json_format

        if isinstance(source, str) and source.lstrip()[:1] == "{":
            text, place = source, "the text"
        else:
            if not isinstance(source, (str, os.PathLike)):
                raise WrongType("{} is neither a text nor the path of a file".format(type(source).__name__),
                                "pass JSON as text, or a path; a dict as json.dumps(...)")
            place = os.fspath(source)
            try:
                text = read_file(place).decode()
            except UnicodeDecodeError as error:
                raise InvalidArgument("{} is not a graph: {}".format(place, error),
                                      "write it as docs/graph_format.md describes") from None
        made = message("Graph")()
        try:
            json_format.Parse(text, made)
        except (json_format.ParseError, ValueError) as error:
            raise InvalidArgument("{} is not a graph: {}".format(place, error),
                                  "write it as docs/graph_format.md describes") from None
        return cls(made)

    def to_json(self, indent: Any = 2) -> str:
        """The JSON form of docs/graph_format.md. indent: as that of json.dumps."""
        from google.protobuf import json_format

        fields = json_format.MessageToDict(self.message, preserving_proto_field_name=True)
        return json.dumps(_with_numbers(fields, self.message.DESCRIPTOR), indent=indent)

    def __repr__(self) -> str:
        return "<graph '{}': {} nodes, {} tensors>".format(self.name, len(self.message.nodes),
                                                           len(self.message.tensors))


def _with_numbers(fields: Dict[str, Any], kind: Any) -> Dict[str, Any]:
    """The fields of a message with numbers in place of the texts that Protobuf writes for integers of
    64 bits."""

    def convert(value: Any, field: Any) -> Any:
        if isinstance(value, list):
            return [convert(each, field) for each in value]
        if field.message_type is not None:
            return _with_numbers(value, field.message_type)
        if field.cpp_type in _CPP_TYPES_OF_64_BITS:
            number = int(value)
            return number if abs(number) <= _MAX_NUMBER else value
        return value

    return {name: convert(value, kind.fields_by_name[name]) for name, value in fields.items()}


class GraphFinding:
    """One thing that is wrong with a graph.

    code: stable, such as "GRAPH_E203" (docs/graph_format.md).
    warning: whether the graph may be used nevertheless.
    node, tensor: what it concerns; "" if none. A node without a name is its index, as "#7".
    message, fix: what is wrong, and what to do.
    """

    def __init__(self, finding: Any) -> None:
        self.code = str(finding.code)
        self.warning = bool(finding.warning)
        self.node = str(finding.node)
        self.tensor = str(finding.tensor)
        self.message, self.fix = split_fix(finding.message)

    def __str__(self) -> str:
        return "{}{}{}{}: {}. Fix: {}".format(
            self.code, " (warning)" if self.warning else "", ", node " + self.node if self.node else "",
            ", tensor " + self.tensor if self.tensor else "", self.message, self.fix)

    def __repr__(self) -> str:
        return "<finding {}>".format(self)


class GraphDependency(NamedTuple):
    """`node` runs after `after` has ended; both are indices. kind: "read_after_write",
    "write_after_read" or "write_after_write"."""

    node: int
    after: int
    kind: str


class GraphFusion(NamedTuple):
    """Several nodes that one operator executes: its name, and the nodes' indices in ascending order."""

    operator: str
    nodes: Tuple[int, ...]


class GraphReport:
    """What was found in a graph; str() lists the findings.

    accepted: whether it has no errors.
    findings: up to 100 errors and 100 warnings. errors, warnings: how many there are.
    dependency_count, longest_chain: of the dependencies, and of nodes on the longest chain of them; 0 if
        the check ended before they were derived.
    weight_bytes, state_bytes, activation_bytes, other_bytes: of the tensors, by kind.
    dependencies: those of nodes, if validate() was asked for them.
    fusions: the nodes that are executed together.
    """

    def __init__(self, report: Any) -> None:
        self.accepted = bool(report.accepted)
        self.findings: List[GraphFinding] = [GraphFinding(each) for each in report.findings]
        self.errors = int(report.errors)
        self.warnings = int(report.warnings)
        self.dependency_count = int(report.dependency_count)
        self.longest_chain = int(report.longest_chain)
        self.weight_bytes = int(report.weight_bytes)
        self.state_bytes = int(report.state_bytes)
        self.activation_bytes = int(report.activation_bytes)
        self.other_bytes = int(report.other_bytes)
        self.dependencies: List[GraphDependency] = [
            GraphDependency(each.node, each.after, _DEPENDENCIES.get(each.kind, "unknown").lower())
            for each in report.dependencies
        ]
        self.fusions: List[GraphFusion] = [
            GraphFusion(str(each.operator), tuple(each.nodes)) for each in report.fusions
        ]

    def __str__(self) -> str:
        head = "{}: {} errors, {} warnings".format("accepted" if self.accepted else "refused", self.errors,
                                                   self.warnings)
        return "\n".join([head] + ["  {}".format(finding) for finding in self.findings])

    def __repr__(self) -> str:
        return "<graph report: {}>".format(self)


class GraphRefused(InvalidArgument):
    """A graph has errors. `report` is the GraphReport."""

    def __init__(self, name: str, report: GraphReport) -> None:
        errors = [each for each in report.findings if not each.warning]
        if report.errors == 1 and errors:
            text, fix = str(errors[0]).rpartition(". Fix: ")[0], errors[0].fix
        else:
            text = "{} errors\n  {}".format(report.errors, "\n  ".join(map(str, errors)))
            fix = "correct them; `report` of this error has all findings"
        super().__init__("graph '{}' is refused: {}".format(name, text), fix)
        self.report = report
