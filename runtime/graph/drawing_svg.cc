#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/graph/drawing.h"
#include "runtime/graph/errors.h"
#include "runtime/graph/layered_layout.h"

namespace resident::graph {
namespace {

// Lengths are CSS pixels.
constexpr double kFont = 12;
// A character of a monospaced font.
constexpr double kColumn = 0.61 * kFont;
constexpr double kLine = 15;
constexpr double kPadding = 8;
constexpr double kMargin = 24;
constexpr double kMinWidth = 640;
// Characters of a line in a box.
constexpr size_t kMaxLine = 34;
// Lines of a box: name, operator, results, what is read from outside.
constexpr size_t kLines = 4;

struct Family {
  // As in the table of operators; "": installed.
  const char* name;
  const char* label;
  const char* fill;
  const char* border;
};
constexpr std::array<Family, 9> kFamilies = {{
    {"elementwise", "elementwise", "#dbeafe", "#3b82f6"},
    {"reduction", "reduction", "#cffafe", "#0891b2"},
    {"normalization", "normalization", "#dcfce7", "#16a34a"},
    {"matrix", "matrix", "#fef3c7", "#d97706"},
    {"attention", "attention", "#fce7f3", "#db2777"},
    {"training", "training", "#fee2e2", "#dc2626"},
    {"decoding", "decoding", "#ede9fe", "#7c3aed"},
    {"data", "data", "#e5e7eb", "#6b7280"},
    {"", "installed", "#ccfbf1", "#0d9488"},
}};

const Family& FindFamily(const std::string& name) {
  for (const Family& family : kFamilies) {
    if (family.name == name) return family;
  }
  return kFamilies.back();
}

struct LineStyle {
  DependencyKind kind;
  const char* label;
  const char* colour;
  // Lengths of dashes and gaps; "": none.
  const char* dashes;
};
constexpr std::array<LineStyle, 3> kLineStyles = {{
    {DependencyKind::kReadAfterWrite, "reads what the other wrote", "#7b8494", ""},
    {DependencyKind::kWriteAfterRead, "overwrites what the other reads", "#d97706", "6 4"},
    {DependencyKind::kWriteAfterWrite, "overwrites what the other wrote", "#dc2626", "2 3"},
}};

// Attributes of texts outside of boxes.
constexpr char kCaption[] = " fill=\"#7d8590\"";
constexpr char kTitle[] = " fill=\"#7d8590\" font-size=\"16\" font-weight=\"bold\"";

// A length with one decimal, so that pictures are short and equal everywhere.
std::string Number(double value) {
  const long long tenths = std::llround(value * 10);
  const long long size = tenths < 0 ? -tenths : tenths;
  return absl::StrCat(tenths < 0 ? "-" : "", size / 10,
                      size % 10 == 0 ? "" : absl::StrCat(".", size % 10));
}

// The dependencies that are drawn: those of data, and those because memory is written again unless
// there is a longer way from one node to the other.
std::vector<LayoutEdge> ChooseEdges(const Graph& graph, const Dependencies& order) {
  const size_t count = graph.nodes.size();
  const size_t words = (count + 63) / 64;
  // By node: the nodes that end before it.
  std::vector<uint64_t> before(count * words, 0);
  std::vector<LayoutEdge> edges;
  for (uint32_t n = 0; n < count; ++n) {
    // Those before the nodes that end before it.
    std::vector<uint64_t> farther(words, 0);
    for (const Dependency& dependency : order.Of(n)) {
      for (size_t w = 0; w < words; ++w) farther[w] |= before[dependency.after * words + w];
    }
    std::copy(farther.begin(), farther.end(), before.begin() + static_cast<long>(n * words));
    for (const Dependency& dependency : order.Of(n)) {
      const uint32_t after = dependency.after;
      before[n * words + after / 64] |= uint64_t{1} << (after % 64);
      const bool follows = (farther[after / 64] >> (after % 64) & 1) != 0;
      if (dependency.kind != DependencyKind::kReadAfterWrite && follows) continue;
      edges.push_back({after, n, static_cast<uint32_t>(dependency.kind)});
    }
  }
  return edges;
}

std::array<std::string, kLines> BoxLines(const Graph& graph, uint32_t node) {
  const Node& of = graph.nodes[node];
  return {Shorten(NodeTitle(graph, node), kMaxLine), Shorten(OperatorText(graph, of), kMaxLine),
          Shorten(ResultText(graph, of), kMaxLine), Shorten(OutsideText(graph, of), kMaxLine)};
}

class Svg {
 public:
  Svg(const Graph& graph, const Dependencies& order, const std::vector<LayoutEdge>& edges,
      const Layout& layout, std::vector<std::array<std::string, kLines>> lines,
      std::vector<double> widths, double box_height)
      : graph_(graph),
        order_(order),
        edges_(edges),
        layout_(layout),
        lines_(std::move(lines)),
        widths_(std::move(widths)),
        box_height_(box_height) {}

  std::string Draw() {
    width_ = std::max(layout_.width, kMinWidth) + 2 * kMargin;
    left_ = (width_ - layout_.width) / 2;
    AddHeader();
    AddLegend();
    top_ = at_ + kMargin;
    AddLines();
    for (uint32_t n = 0; n < graph_.nodes.size(); ++n) AddBox(n);
    const double height = top_ + layout_.height + kMargin;
    return absl::StrCat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", Number(width_),
                        "\" height=\"", Number(height), "\" viewBox=\"0 0 ", Number(width_), " ",
                        Number(height),
                        "\" font-family=\"ui-monospace, DejaVu Sans Mono, monospace\" font-size=\"",
                        Number(kFont), "\">\n", Markers(), body_, "</svg>\n");
  }

 private:
  static std::string Markers() {
    std::string text = "<defs>\n";
    for (const LineStyle& style : kLineStyles) {
      absl::StrAppend(&text, "<marker id=\"a", static_cast<uint32_t>(style.kind),
                      "\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" "
                      "markerHeight=\"7\" markerUnits=\"userSpaceOnUse\" orient=\"auto\">"
                      "<path d=\"M0 0.5L8 4L0 7.5z\" fill=\"",
                      style.colour, "\"/></marker>\n");
    }
    return text + "</defs>\n";
  }

  void Text(double x, double y, const char* attributes, const std::string& text) {
    absl::StrAppend(&body_, "<text x=\"", Number(x), "\" y=\"", Number(y), "\"", attributes, ">",
                    EscapeXml(text), "</text>\n");
  }

  // A caption that begins new lines where it has to.
  void Caption(const std::string& text) {
    const size_t columns = static_cast<size_t>((width_ - 2 * kMargin) / kColumn);
    std::string line;
    std::string_view rest = text;
    while (!rest.empty()) {
      const size_t space = std::min(rest.find(' '), rest.size() - 1);
      const std::string word(rest.substr(0, space + 1));
      rest.remove_prefix(space + 1);
      if (!line.empty() && CountColumns(line) + CountColumns(word) > columns) CaptionLine(&line);
      line += word;
    }
    CaptionLine(&line);
  }
  void CaptionLine(std::string* line) {
    at_ += kLine + 2;
    Text(kMargin, at_, kCaption, *line);
    line->clear();
  }

  void AddHeader() {
    at_ = kMargin;
    Text(kMargin, at_, kTitle, Shorten(graph_.name.empty() ? "graph" : Printable(graph_.name), 60));
    const uint64_t hidden = order_.size() - edges_.size();
    Caption(absl::StrCat(
        graph_.nodes.size(), graph_.nodes.size() == 1 ? " node, " : " nodes, ", order_.size(),
        order_.size() == 1 ? " dependency" : " dependencies",
        hidden == 0 ? ""
                    : absl::StrCat(" (of which ", hidden, hidden == 1 ? " follows" : " follow",
                                   " from others and", hidden == 1 ? " is" : " are", " not drawn)"),
        ", longest chain ", order_.LongestChain()));
    const std::string loop = LoopText(graph_);
    if (!loop.empty()) Caption(absl::StrCat("loop: ", loop));
  }

  // Room for an entry of the legend, on this line or the next one.
  double Reserve(double* x, double room) {
    if (*x > kMargin && *x + room > width_ - kMargin) {
      *x = kMargin;
      at_ += kLine + 5;
    }
    const double at = *x;
    *x += room + 18;
    return at;
  }

  void AddLegend() {
    at_ += kLine + 10;
    double x = kMargin;
    for (const Family& family : kFamilies) {
      const bool used =
          std::any_of(graph_.nodes.begin(), graph_.nodes.end(), [&](const Node& node) {
            return &FindFamily(graph_.operators[node.op].family) == &family;
          });
      if (!used) continue;
      const double at = Reserve(&x, 20 + kColumn * static_cast<double>(std::strlen(family.label)));
      absl::StrAppend(&body_, "<rect x=\"", Number(at), "\" y=\"", Number(at_ - 10),
                      "\" width=\"14\" height=\"12\" rx=\"3\" fill=\"", family.fill, "\" stroke=\"",
                      family.border, "\"/>\n");
      Text(at + 20, at_, kCaption, family.label);
    }
    at_ += kLine + 5;
    x = kMargin;
    for (const LineStyle& style : kLineStyles) {
      const bool used = std::any_of(edges_.begin(), edges_.end(), [&](const LayoutEdge& edge) {
        return edge.group == static_cast<uint32_t>(style.kind);
      });
      if (!used) continue;
      const double at = Reserve(&x, 40 + kColumn * static_cast<double>(std::strlen(style.label)));
      absl::StrAppend(&body_, "<path d=\"M", Number(at), " ", Number(at_ - 4), "h32\"",
                      Stroke(style), " marker-end=\"url(#a", static_cast<uint32_t>(style.kind),
                      ")\"/>\n");
      Text(at + 40, at_, kCaption, style.label);
    }
  }

  static std::string Stroke(const LineStyle& style) {
    return absl::StrCat(
        " fill=\"none\" stroke=\"", style.colour, "\" stroke-width=\"1.5\"",
        *style.dashes == 0 ? "" : absl::StrCat(" stroke-dasharray=\"", style.dashes, "\""));
  }

  std::string Path(const Layout::Segment& segment) const {
    const double x1 = left_ + segment.from.x, y1 = top_ + segment.from.y;
    // The point of an arrow touches the box.
    const double x2 = left_ + segment.to.x, y2 = top_ + segment.to.y - (segment.arrow ? 1 : 0);
    if (x1 == x2) return absl::StrCat("M", Number(x1), " ", Number(y1), "V", Number(y2));
    const double bend = (y2 - y1) * 0.5;
    return absl::StrCat("M", Number(x1), " ", Number(y1), "C", Number(x1), " ", Number(y1 + bend),
                        " ", Number(x2), " ", Number(y2 - bend), " ", Number(x2), " ", Number(y2));
  }

  void AddLines() {
    for (const LineStyle& style : kLineStyles) {
      const uint32_t group = static_cast<uint32_t>(style.kind);
      std::string plain, arrows;
      for (const Layout::Segment& segment : layout_.segments) {
        if (segment.group != group) continue;
        if (segment.arrow) {
          // Markers are not inherited from the group.
          absl::StrAppend(&arrows, "<path d=\"", Path(segment), "\" marker-end=\"url(#a", group,
                          ")\"/>\n");
        } else {
          absl::StrAppend(&plain, Path(segment));
        }
      }
      if (!plain.empty()) {
        absl::StrAppend(&body_, "<path d=\"", plain, "\"", Stroke(style), "/>\n");
      }
      if (!arrows.empty()) {
        absl::StrAppend(&body_, "<g", Stroke(style), ">\n", arrows, "</g>\n");
      }
    }
  }

  void AddBox(uint32_t n) {
    const Node& node = graph_.nodes[n];
    const Family& family = FindFamily(graph_.operators[node.op].family);
    const double x = left_ + layout_.nodes[n].x, y = top_ + layout_.nodes[n].y;
    absl::StrAppend(&body_, "<g><title>",
                    EscapeXml(absl::StrCat(NodeTitle(graph_, n), ": ", CallText(graph_, node))),
                    "</title>\n<rect x=\"", Number(x - widths_[n] / 2), "\" y=\"", Number(y),
                    "\" width=\"", Number(widths_[n]), "\" height=\"", Number(box_height_),
                    "\" rx=\"6\" fill=\"", family.fill, "\" stroke=\"", family.border, "\"/>\n");
    double at = y + kPadding - 3;
    for (size_t i = 0; i < kLines; ++i) {
      at += kLine;
      if (lines_[n][i].empty()) continue;
      Text(x, at,
           i == 0   ? " text-anchor=\"middle\" font-weight=\"bold\" fill=\"#111827\""
           : i == 1 ? " text-anchor=\"middle\" fill=\"#111827\""
                    : " text-anchor=\"middle\" font-size=\"11\" fill=\"#4b5563\"",
           lines_[n][i]);
    }
    absl::StrAppend(&body_, "</g>\n");
  }

  const Graph& graph_;
  const Dependencies& order_;
  const std::vector<LayoutEdge>& edges_;
  const Layout& layout_;
  const std::vector<std::array<std::string, kLines>> lines_;
  const std::vector<double> widths_;
  const double box_height_;
  double width_ = 0;
  double left_ = 0;
  double top_ = 0;
  // The last line of header and legend.
  double at_ = 0;
  std::string body_;
};

}  // namespace

absl::StatusOr<std::string> DrawSvg(const Graph& graph, const Dependencies& order) {
  assert(CheckDrawable(graph.nodes.size(), DrawingFormat::kSvg).ok());
  assert(order.size() <= kMaxSvgDependencies);
  const std::vector<LayoutEdge> edges = ChooseEdges(graph, order);
  std::vector<std::array<std::string, kLines>> lines;
  std::vector<double> widths;
  size_t used = 3;
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    lines.push_back(BoxLines(graph, n));
    size_t columns = 8;
    for (const std::string& line : lines.back()) columns = std::max(columns, CountColumns(line));
    widths.push_back(kColumn * static_cast<double>(columns) + 2 * kPadding);
    if (!lines.back()[kLines - 1].empty()) used = kLines;
  }
  LayoutOptions options;
  options.node_height = kLine * static_cast<double>(used) + 2 * kPadding - 4;
  const std::optional<Layout> layout = LayOut(widths, edges, options);
  if (!layout.has_value()) return errors::TooLongToDraw(edges.size(), kMaxLayoutItems);
  return Svg(graph, order, edges, *layout, std::move(lines), std::move(widths), options.node_height)
      .Draw();
}

}  // namespace resident::graph
