// Pictures of graphs, without a daemon.
#include "runtime/graph/drawing.h"

#include <algorithm>
#include <map>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/graph/check_budget.h"
#include "runtime/graph/layered_layout.h"
#include "server/graphs/graph_render.h"
#include "tests/graph/builtin_catalog.h"
#include "tests/graph/graph_maker.h"

namespace resident::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Format = v1::RenderGraphRequest;

std::string Draw(const v1::Graph& graph, Format::Format format) {
  static const BuiltinCatalog* const catalog = new BuiltinCatalog;
  v1::RenderGraphRequest request;
  *request.mutable_graph() = graph;
  request.set_format(format);
  v1::RenderGraphResponse response;
  graph::CheckBudget budget;
  const absl::Status drawn = RenderGraph(request, *catalog, budget, &response);
  EXPECT_TRUE(drawn.ok()) << drawn;
  EXPECT_TRUE(response.report().accepted()) << FindingsText(response.report());
  return response.picture();
}

// y = relu(x), in place of which z is written to the same activation.
GraphMaker Overwriting() {
  GraphMaker g;
  g.Input("x", {4, 8}).Activation("a", {4, 8}).Output("y", {4, 8}).Output("z", {4, 8});
  g.Call("relu", {"x", "a"}).Call("silu", {"a", "y"});
  g.Call("tanh", {"x", "a"}).Call("softmax", {"a", "z"});
  return g;
}

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(DrawingTest, DotListsNodesAndDependencies) {
  const std::string dot = Draw(Overwriting().graph, Format::FORMAT_DOT);
  EXPECT_THAT(dot, HasSubstr("n0 [label=\"relu0\\nrelu(x, a)\"]"));
  EXPECT_THAT(dot, HasSubstr("n0 -> n1;"));
  EXPECT_THAT(dot, HasSubstr("n1 -> n2 [style=dashed];"));
}

TEST(DrawingTest, SvgShowsWhatIsInTheGraph) {
  const std::string svg = Draw(Overwriting().graph, Format::FORMAT_SVG);
  // Name, operator, result and what is read from outside, and the call for the pointer.
  EXPECT_THAT(svg, HasSubstr(">silu1</text>"));
  EXPECT_THAT(svg, HasSubstr(">silu</text>"));
  EXPECT_THAT(svg, HasSubstr(">f32[4, 8] in output y</text>"));
  EXPECT_THAT(svg, HasSubstr(">reads input x</text>"));
  EXPECT_THAT(svg, HasSubstr("<title>silu1: silu(a, y)</title>"));
  // The legend has the families and the kinds of lines that occur.
  EXPECT_THAT(svg, HasSubstr(">normalization</text>"));
  EXPECT_THAT(svg, Not(HasSubstr(">matrix</text>")));
  EXPECT_THAT(svg, HasSubstr(">overwrites what the other reads</text>"));
  // tanh2 overwrites what relu0 wrote, but silu1 lies between.
  EXPECT_THAT(svg, HasSubstr("4 dependencies (of which 1 follows from others and is not drawn)"));
  EXPECT_THAT(svg, Not(HasSubstr(">overwrites what the other wrote</text>")));
  EXPECT_EQ(Count(svg, "<title>"), 4u);
}

TEST(DrawingTest, SvgShowsScalarsAndTheLoop) {
  GraphMaker g;
  g.Scalar("n", 1, 4).Input("x", {D("n"), 8});
  g.Tensor(v1::GraphTensor::KIND_STREAM, "s", {3, D("n"), 8});
  g.Call("relu", {"x", "s"});
  v1::GraphLoop& loop = *g.graph.mutable_loop();
  loop.set_max_steps(3);
  loop.add_updates()->set_scalar("n");
  loop.mutable_updates(0)->set_addend(1);
  const std::string svg = Draw(g.graph, Format::FORMAT_SVG);
  EXPECT_THAT(svg, HasSubstr(">f32[n, 8] in stream s</text>"));
  EXPECT_THAT(svg, HasSubstr("loop: up to 3 steps; after each, n = n + 1"));
}

// Names that could end an element, an attribute or a string, or change how a page is shown.
TEST(DrawingTest, HostileNames) {
  const std::vector<std::string> names = {"</title><script>alert(1)</script>",
                                          "\"];n0->n0;[\"",
                                          "a\\",
                                          "\\N\\l\\\"",
                                          "&lt;&#0;",
                                          "]]>",
                                          "'--",
                                          std::string("\0b\x01\x1b[2J", 7),
                                          "line\nline\r\ttab",
                                          "\u202eevil\u2066",
                                          "\ufffe\uffff",
                                          "<b>",
                                          "%s%n",
                                          "\u540d\u524d"};
  for (const std::string& name : names) {
    GraphMaker g;
    g.Input(name, {4}).Output("y", {4}).Call("relu", {name, "y"});
    g.graph.set_name(name);
    g.node(0).set_name(name);
    const std::string svg = Draw(g.graph, Format::FORMAT_SVG);
    EXPECT_THAT(svg, Not(HasSubstr("<script"))) << name;
    EXPECT_THAT(svg, Not(HasSubstr("<b>"))) << name;
    EXPECT_THAT(svg, Not(HasSubstr("\u202e"))) << name;
    EXPECT_THAT(svg, Not(HasSubstr("\uffff"))) << name;
    const std::string dot = Draw(g.graph, Format::FORMAT_DOT);
    for (const std::string& picture : {svg, dot}) {
      EXPECT_TRUE(std::none_of(picture.begin(), picture.end(), [](char c) {
        return static_cast<unsigned char>(c) < 0x20 && c != '\n';
      })) << name;
    }
    // Nothing of the name is outside of a string.
    const std::string outside = std::regex_replace(dot, std::regex(R"("(\\.|[^"\\\n])*")"), "S");
    EXPECT_EQ(outside,
              "digraph S {\n  rankdir=TB;\n  node [shape=box, fontname=monospace];\n"
              "  n0 [label=S];\n}\n");
  }
}

TEST(DrawingTest, TheSameGraphHasTheSamePicture) {
  GraphMaker g;
  std::mt19937 random(7);
  for (int i = 0; i < 20; ++i) g.State(absl::StrCat("s", i), {4});
  for (int i = 0; i < 300; ++i) {
    const int x = static_cast<int>(random() % 20),
              y = static_cast<int>((x + 1 + random() % 19) % 20);
    g.Call("relu", {absl::StrCat("s", x), absl::StrCat("s", y)});
  }
  EXPECT_EQ(Draw(g.graph, Format::FORMAT_SVG), Draw(g.graph, Format::FORMAT_SVG));
}

// What an SVG consists of, in its coordinates.
struct Box {
  double x, y, width, height;
  std::string title;
  struct Text {
    double x, y, size;
    std::string text;
  };
  std::vector<Text> texts;
};
struct Line {
  double x1, y1, x2, y2;
};
struct Picture {
  double width, height;
  std::vector<Box> boxes;
  std::vector<Line> lines;
};

// Of the first match of an expression with one group that is a number.
double FindNumber(const std::string& text, const char* expression) {
  std::smatch match;
  EXPECT_TRUE(std::regex_search(text, match, std::regex(expression))) << expression << text;
  return match.empty() ? 0 : std::stod(match[1]);
}

// Calls `use` with each match.
template <typename Use>
void ForEachMatch(const std::string& text, const char* expression, Use use) {
  const std::regex compiled(expression);
  for (std::sregex_iterator it(text.begin(), text.end(), compiled), end; it != end; ++it) use(*it);
}

Picture ReadPicture(const std::string& svg) {
  Picture picture;
  picture.width = FindNumber(svg, "^<svg [^>]* width=\"([0-9.]+)\"");
  picture.height = FindNumber(svg, "^<svg [^>]* height=\"([0-9.]+)\"");
  ForEachMatch(
      svg, "<g><title>([^<]*)</title>\n<rect ([^>]*)/>([^]*?)</g>", [&](const auto& match) {
        const std::string rect = match[2], texts = match[3];
        Box& box = picture.boxes.emplace_back();
        box.title = match[1];
        box.x = FindNumber(rect, "x=\"([-0-9.]+)\"");
        box.y = FindNumber(rect, "y=\"([-0-9.]+)\"");
        box.width = FindNumber(rect, "width=\"([0-9.]+)\"");
        box.height = FindNumber(rect, "height=\"([0-9.]+)\"");
        ForEachMatch(texts, "<text ([^>]*)>([^<]*)</text>", [&](const auto& text) {
          const std::string attributes = text[1];
          EXPECT_THAT(attributes, HasSubstr("text-anchor=\"middle\""));
          box.texts.push_back(
              {FindNumber(attributes, "x=\"([-0-9.]+)\""),
               FindNumber(attributes, " y=\"([-0-9.]+)\""),
               attributes.find("font-size=\"11\"") == std::string::npos ? 12.0 : 11.0, text[2]});
        });
      });
  // The lines of the legend are horizontal.
  ForEachMatch(
      svg, "M([-0-9.]+) ([-0-9.]+)(?:V|C[^MV\"]* )([-0-9.]+)(?=[M\"])", [&](const auto& match) {
        Line line{std::stod(match[1]), std::stod(match[2]), 0, std::stod(match[3])};
        const std::string all = match[0];
        line.x2 =
            all.find('V') != std::string::npos ? line.x1 : FindNumber(all, " ([-0-9.]+) [-0-9.]+$");
        picture.lines.push_back(line);
      });
  // All but the points of arrows and the legend was read.
  size_t curves = 0;
  ForEachMatch(svg, "M[-0-9]", [&](const auto&) { ++curves; });
  EXPECT_EQ(picture.lines.size(), curves - Count(svg, "<marker ") - Count(svg, "h32"));
  return picture;
}

// Layers of ten nodes, with names as long as in real models.
GraphMaker Model(int layers) {
  GraphMaker g;
  g.Scalar("pos", 0, 63).Input("tokens", {1, 64});
  std::string x = "tokens";
  const auto add = [&](const std::string& name, const std::string& op, std::vector<Arg> arguments) {
    g.Call(op, std::move(arguments));
    g.node(g.graph.nodes_size() - 1).set_name(name);
  };
  for (int layer = 0; layer < layers; ++layer) {
    const std::string l = absl::StrCat("model.layers.", layer, ".");
    const auto product = [&](const std::string& name, const std::string& in) {
      g.Weight(l + name + ".weight", {64, 64}).Activation(l + name, {1, 64});
      add(l + name, "gemv", {in, l + name + ".weight", None(), l + name});
      return l + name;
    };
    g.Weight(l + "input_layernorm.weight", {64}).Activation(l + "normed", {1, 64});
    add(l + "input_layernorm", "rmsnorm", {x, l + "input_layernorm.weight", l + "normed", F(1e-5)});
    const std::string q = product("self_attn.q_proj", l + "normed");
    const std::string k = product("self_attn.k_proj", l + "normed");
    const std::string v = product("self_attn.v_proj", l + "normed");
    g.State(l + "keys", {1, 1, 64, 64}).State(l + "values", {1, 1, 64, 64});
    add(l + "append_keys", "kv_append", {View(k, {1, 1, 1, 64}), l + "keys", S("pos")});
    add(l + "append_values", "kv_append", {View(v, {1, 1, 1, 64}), l + "values", S("pos")});
    g.Activation(l + "attended", {1, 64});
    add(l + "self_attn", "attention",
        {View(q, {1, 1, 1, 64}), l + "keys", l + "values", None(),
         View(l + "attended", {1, 1, 1, 64}), F(0.125), I(0), S("pos", 1, 1)});
    const std::string o = product("self_attn.o_proj", l + "attended");
    g.Activation(l + "activated", {1, 64});
    add(l + "activation", "silu_mul", {o, l + "normed", l + "activated"});
    const std::string out = layer + 1 == layers ? "logits" : l + "residual";
    layer + 1 == layers ? g.Output(out, {1, 64}) : g.Activation(out, {1, 64});
    add(l + "residual", "add", {x, l + "activated", out});
    x = out;
  }
  return g;
}

// Sums of two values that exist.
GraphMaker RandomSums(int nodes, uint32_t seed) {
  std::mt19937 random(seed);
  GraphMaker g;
  g.Input("v0", {4, 8});
  for (int n = 1; n <= nodes; ++n) {
    const auto any = [&] { return absl::StrCat("v", random() % static_cast<uint32_t>(n)); };
    const std::string out = absl::StrCat("v", n);
    g.Output(out, {4, 8}).Call("add", {any(), any(), out});
  }
  return g;
}

// A person can read it: the boxes stand apart from each other, their texts fit into them, no line
// crosses a box, and the picture is not wider than boxes of its widest layer.
void ExpectReadable(const v1::Graph& graph) {
  const Picture picture = ReadPicture(Draw(graph, Format::FORMAT_SVG));
  ASSERT_EQ(picture.boxes.size(), static_cast<size_t>(graph.nodes_size()));
  EXPECT_GE(picture.lines.size(), picture.boxes.size() - 1);
  std::map<double, double> row_widths;
  for (size_t a = 0; a < picture.boxes.size(); ++a) {
    const Box& box = picture.boxes[a];
    SCOPED_TRACE(box.title);
    EXPECT_GE(box.x, 0);
    EXPECT_GE(box.y, 0);
    EXPECT_LE(box.x + box.width, picture.width);
    EXPECT_LE(box.y + box.height, picture.height);
    row_widths[box.y] += box.width + 24;
    for (size_t b = 0; b < a; ++b) {
      const Box& other = picture.boxes[b];
      const bool apart = box.x + box.width + 20 <= other.x || other.x + other.width + 20 <= box.x ||
                         box.y + box.height + 20 <= other.y || other.y + other.height + 20 <= box.y;
      EXPECT_TRUE(apart) << other.title;
    }
    ASSERT_GE(box.texts.size(), 3u);
    EXPECT_EQ(box.texts[0].text, graph.nodes(static_cast<int>(a)).name());
    double below = box.y;
    for (const Box::Text& text : box.texts) {
      const double width = static_cast<double>(graph::CountColumns(text.text)) * 0.61 * text.size;
      EXPECT_NEAR(text.x, box.x + box.width / 2, 0.2);
      EXPECT_LE(width, box.width) << text.text;
      EXPECT_GE(text.y - text.size, below - 0.2) << text.text;
      below = text.y;
    }
    EXPECT_LE(below, box.y + box.height);
    for (const Line& line : picture.lines) {
      if (line.y2 <= box.y || line.y1 >= box.y + box.height) continue;
      // It passes the layer between two boxes.
      EXPECT_EQ(line.x1, line.x2);
      EXPECT_TRUE(line.x1 < box.x - 2 || line.x1 > box.x + box.width + 2) << line.x1;
    }
  }
  double widest = 640;
  for (const auto& [y, width] : row_widths) widest = std::max(widest, width);
  EXPECT_LE(picture.width, 2 * widest);
  EXPECT_LE(picture.width, 20 * 300);
}

TEST(DrawingTest, APictureOf80NodesIsReadable) {
  const GraphMaker model = Model(8);
  ASSERT_EQ(model.graph.nodes_size(), 80);
  ExpectReadable(model.graph);
  for (const uint32_t seed : {1, 2, 3}) {
    GraphMaker sums = RandomSums(80, seed);
    for (int n = 0; n < 80; ++n) sums.node(n).set_name(absl::StrCat("sum", n));
    ExpectReadable(sums.graph);
  }
}

TEST(DrawingTest, MoreThanAPictureMayHave) {
  static const BuiltinCatalog* const catalog = new BuiltinCatalog;
  // 300 writers that each of 100 readers waits for.
  GraphMaker g;
  g.State("s", {300}).Input("x", {1});
  for (int i = 0; i < 300; ++i) g.Call("relu", {"x", View("s", {1}, i)});
  for (int i = 0; i < 100; ++i) {
    const std::string name = absl::StrCat("y", i);
    g.Output(name, {300}).Call("relu", {"s", name});
  }
  v1::RenderGraphRequest request;
  *request.mutable_graph() = g.graph;
  request.set_format(Format::FORMAT_SVG);
  v1::RenderGraphResponse response;
  graph::CheckBudget budget;
  const absl::Status many = RenderGraph(request, *catalog, budget, &response);
  EXPECT_EQ(many.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(many.message()), HasSubstr("30000 dependencies"));
  EXPECT_THAT(std::string(many.message()), HasSubstr("Fix: "));
  EXPECT_EQ(Count(Draw(g.graph, Format::FORMAT_DOT), "->"), 30000u);
}

TEST(DrawingTest, ARefusedGraphHasNoPicture) {
  static const BuiltinCatalog* const catalog = new BuiltinCatalog;
  v1::RenderGraphRequest request;
  request.set_format(Format::FORMAT_SVG);
  request.mutable_graph()->set_format(1);
  v1::RenderGraphResponse response;
  graph::CheckBudget budget;
  EXPECT_TRUE(RenderGraph(request, *catalog, budget, &response).ok());
  EXPECT_FALSE(response.report().accepted());
  EXPECT_EQ(response.picture(), "");
}

TEST(DrawingTest, TextsAreShortenedByCharacters) {
  EXPECT_EQ(graph::Shorten("abcdef", 6), "abcdef");
  EXPECT_EQ(graph::Shorten("abcdefg", 6), "abcde\u2026");
  EXPECT_EQ(graph::Shorten("\u540d\u524d\u540d", 2), "\u540d\u2026");
  EXPECT_EQ(graph::CountColumns("a\u540d"), 3u);
}

TEST(LayeredLayoutTest, NodesDoNotOverlapAndEdgesLeadDown) {
  std::mt19937 random(11);
  for (int round = 0; round < 60; ++round) {
    const uint32_t count = round < 10 ? 80 : 1 + static_cast<uint32_t>(random() % 80);
    std::vector<double> widths;
    std::vector<graph::LayoutEdge> edges;
    std::set<std::pair<uint32_t, uint32_t>> pairs;
    for (uint32_t n = 0; n < count; ++n) {
      widths.push_back(50 + static_cast<double>(random() % 100));
      for (uint32_t e = 0; n > 0 && e < random() % 3; ++e) {
        const auto from = static_cast<uint32_t>(random() % n);
        if (pairs.emplace(from, n).second) {
          edges.push_back({from, n, static_cast<uint32_t>(random() % 2)});
        }
      }
    }
    const graph::LayoutOptions options;
    const std::optional<graph::Layout> layout = LayOut(widths, edges, options);
    ASSERT_TRUE(layout.has_value());
    for (uint32_t a = 0; a < count; ++a) {
      EXPECT_GE(layout->nodes[a].x - widths[a] / 2, -0.01);
      EXPECT_LE(layout->nodes[a].x + widths[a] / 2, layout->width + 0.01);
      for (uint32_t b = 0; b < a; ++b) {
        if (layout->nodes[a].y != layout->nodes[b].y) continue;
        EXPECT_GE(std::abs(layout->nodes[a].x - layout->nodes[b].x),
                  (widths[a] + widths[b]) / 2 + options.node_gap - 0.01);
      }
    }
    size_t arrows = 0;
    for (const graph::Layout::Segment& segment : layout->segments) {
      EXPECT_LT(segment.from.y, segment.to.y);
      arrows += segment.arrow;
    }
    EXPECT_EQ(arrows, edges.size());
    for (const graph::LayoutEdge& edge : edges) {
      EXPECT_LT(layout->nodes[edge.from].y, layout->nodes[edge.to].y);
    }
  }
}

// Nodes without an order stand in several rows.
TEST(LayeredLayoutTest, ManyIndependentNodes) {
  const std::optional<graph::Layout> layout =
      LayOut(std::vector<double>(200, 100), {}, graph::LayoutOptions{});
  ASSERT_TRUE(layout.has_value());
  EXPECT_LE(layout->width, 20 * 124);
  EXPECT_LE(layout->height, 10 * 110);
}

// A route past many layers that many nodes have would be larger than any picture.
TEST(LayeredLayoutTest, TooManyBends) {
  constexpr uint32_t kChain = 1000, kSources = 100;
  std::vector<graph::LayoutEdge> edges;
  for (uint32_t n = 1; n < kChain; ++n) edges.push_back({n - 1, n, 0});
  // Each node of the first hundred has an edge to the end.
  for (uint32_t n = 0; n < kSources; ++n) edges.push_back({n, kChain - 1, 1});
  EXPECT_FALSE(LayOut(std::vector<double>(kChain, 10), edges, {}).has_value());
}

}  // namespace
}  // namespace resident::testing
