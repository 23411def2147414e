#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/utf8.h"
#include "runtime/graph/drawing.h"
#include "runtime/graph/values.h"
#include "runtime/model/dtype.h"

namespace resident::graph {
namespace {

// The next character of well-formed UTF-8, which is removed from `text`.
char32_t NextCharacter(std::string_view* text) {
  const auto first = static_cast<unsigned char>((*text)[0]);
  const size_t length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  char32_t value = length == 1 ? first : first & (0xffu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    value = value << 6 | (static_cast<unsigned char>((*text)[i]) & 0x3fu);
  }
  text->remove_prefix(length);
  return value;
}

// Characters that change the direction of text, separate lines, or may not stand in XML.
bool IsHarmful(char32_t c) {
  return c == '\t' || c == 0x200e || c == 0x200f || (c >= 0x2028 && c <= 0x202e) ||
         (c >= 0x2066 && c <= 0x2069) || (c & 0xfffe) == 0xfffe;
}

bool IsWide(char32_t c) {
  return (c >= 0x1100 && c <= 0x115f) || (c >= 0x2e80 && c <= 0xa4cf) ||
         (c >= 0xac00 && c <= 0xd7a3) || (c >= 0xf900 && c <= 0xfaff) ||
         (c >= 0xfe30 && c <= 0xfe6f) || (c >= 0xff00 && c <= 0xff60) ||
         (c >= 0x1f300 && c <= 0x3fffd);
}

std::string DimsText(const Graph& graph, const View& view) {
  return absl::StrCat("[",
                      absl::StrJoin(graph.AxesOf(view), ", ",
                                    [&](std::string* out, const Axis& axis) {
                                      if (axis.scalar == kNone) {
                                        absl::StrAppend(out, axis.size);
                                      } else {
                                        out->append(graph.scalars[axis.scalar].name);
                                      }
                                    }),
                      "]");
}

std::string AffineText(const std::string& scalar, double factor, double addend) {
  std::string text = factor == 1 ? scalar : absl::StrCat(factor, " * ", scalar);
  if (addend != 0) absl::StrAppend(&text, addend < 0 ? " - " : " + ", std::abs(addend));
  return text;
}

// "weight w".
std::string PlaceText(const Graph& graph, uint32_t tensor) {
  const std::string kind = KindText(graph.tensors[tensor].kind);
  const size_t article = kind.find(' ') + 1;
  return absl::StrCat(kind.substr(article), " ", graph.TensorName(tensor));
}

bool IsWritten(const Parameter& parameter) {
  return parameter.kind == ParameterKind::kOutput || parameter.kind == ParameterKind::kInOut;
}

// Whether the argument is the whole tensor.
bool IsWhole(const Graph& graph, const Argument& argument) {
  const View& part = argument.view;
  const View& whole = graph.tensors[argument.tensor].view;
  const auto a = graph.AxesOf(part), b = graph.AxesOf(whole);
  return part.offset == whole.offset &&
         std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Axis& x, const Axis& y) {
           return x.size == y.size && x.stride == y.stride && x.scalar == y.scalar;
         });
}

std::string ArgumentText(const Graph& graph, const Argument& argument) {
  switch (argument.kind) {
    case Argument::Kind::kTensor:
      return absl::StrCat(graph.TensorName(argument.tensor),
                          IsWhole(graph, argument) ? "" : DimsText(graph, argument.view));
    case Argument::Kind::kNoTensor:
      return "none";
    case Argument::Kind::kInteger:
      return absl::StrCat(argument.integer);
    case Argument::Kind::kFloat:
      return absl::StrCat(argument.number);
    case Argument::Kind::kExpression: {
      const ScalarExpression& use = graph.expressions[argument.expression];
      return AffineText(std::string(graph.scalars[use.scalar].name), use.factor, use.addend);
    }
  }
  return "";
}

}  // namespace

std::string Printable(std::string_view text) {
  const std::string line = ToPrintableLine(absl::string_view(text.data(), text.size()));
  std::string printable;
  for (std::string_view rest = line; !rest.empty();) {
    const std::string_view before = rest;
    if (IsHarmful(NextCharacter(&rest))) {
      printable += '?';
    } else {
      printable.append(before.substr(0, before.size() - rest.size()));
    }
  }
  return printable;
}

std::string Shorten(const std::string& text, size_t characters) {
  std::string_view rest = text;
  size_t kept = 0;
  for (size_t i = 0; !rest.empty(); ++i) {
    if (i + 1 == characters) kept = text.size() - rest.size();
    if (i == characters) return absl::StrCat(text.substr(0, kept), "\u2026");
    NextCharacter(&rest);
  }
  return text;
}

size_t CountColumns(std::string_view text) {
  size_t columns = 0;
  while (!text.empty()) columns += IsWide(NextCharacter(&text)) ? 2 : 1;
  return columns;
}

std::string NodeTitle(const Graph& graph, uint32_t node) { return Printable(graph.NodeName(node)); }

std::string OperatorText(const Graph& graph, const Node& node) {
  const OperatorInfo& op = graph.operators[node.op];
  return Printable(op.wanted_version == 0 ? op.name
                                          : absl::StrCat(op.name, " version ", op.wanted_version));
}

std::string ResultText(const Graph& graph, const Node& node) {
  const std::vector<Parameter>& parameters = graph.operators[node.op].signature.parameters();
  const auto arguments = graph.ArgumentsOf(node);
  std::string text;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!IsWritten(parameters[i]) || arguments[i].kind != Argument::Kind::kTensor) continue;
    if (!text.empty()) {
      absl::StrAppend(&text, ", ...");
      continue;
    }
    text = absl::StrCat(DTypeName(arguments[i].view.dtype), DimsText(graph, arguments[i].view));
    if (graph.tensors[arguments[i].tensor].kind != TensorKind::kActivation) {
      absl::StrAppend(&text, " in ", PlaceText(graph, arguments[i].tensor));
    }
  }
  return Printable(text);
}

std::string OutsideText(const Graph& graph, const Node& node) {
  const std::vector<Parameter>& parameters = graph.operators[node.op].signature.parameters();
  const auto arguments = graph.ArgumentsOf(node);
  std::vector<std::string> places;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (parameters[i].kind != ParameterKind::kInput ||
        arguments[i].kind != Argument::Kind::kTensor ||
        !IsDefined(graph.tensors[arguments[i].tensor].kind)) {
      continue;
    }
    std::string place = PlaceText(graph, arguments[i].tensor);
    if (std::find(places.begin(), places.end(), place) == places.end()) {
      places.push_back(std::move(place));
    }
  }
  return places.empty() ? "" : Printable(absl::StrCat("reads ", absl::StrJoin(places, ", ")));
}

std::string CallText(const Graph& graph, const Node& node) {
  const std::vector<Parameter>& parameters = graph.operators[node.op].signature.parameters();
  const auto arguments = graph.ArgumentsOf(node);
  std::vector<std::string> texts;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string text = ArgumentText(graph, arguments[i]);
    texts.push_back(parameters[i].scalar() ? absl::StrCat(parameters[i].name, " = ", text) : text);
  }
  return Printable(
      absl::StrCat(graph.operators[node.op].name, "(", absl::StrJoin(texts, ", "), ")"));
}

std::string LoopText(const Graph& graph) {
  if (!graph.loop.has_value()) return "";
  std::string text = absl::StrCat("up to ", graph.loop->max_steps,
                                  graph.loop->max_steps == 1 ? " step" : " steps");
  for (const Loop::Update& update : graph.loop->updates) {
    const std::string name(graph.scalars[update.scalar].name);
    absl::StrAppend(&text, "; after each, ", name, " = ",
                    AffineText(name, update.factor, update.addend));
  }
  if (graph.loop->stop_tensor != kNone) {
    absl::StrAppend(&text, "; ends when ", graph.TensorName(graph.loop->stop_tensor), " is ",
                    absl::StrJoin(graph.loop->stop_values, " or "));
  }
  return Printable(text);
}

std::string EscapeXml(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string QuoteDot(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (c == '\n') {
      quoted += "\\n";
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

}  // namespace resident::graph
