#include "hetermoe/data/jinja/template.h"

#include <fmt/format.h>

#include <algorithm>

#include "hetermoe/base/error.h"
#include "hetermoe/data/jinja/expression.h"
#include "hetermoe/data/jinja/functions.h"

// Tags become statements.
namespace hetermoe::jinja {

Flow run(const std::vector<Statement>& statements, const ScopePtr& scope, std::string& out) {
  for (const Statement& statement : statements) {
    scope->budget().take();
    if (const Flow flow = statement(scope, out); flow != Flow::kNext) return flow;
    if (out.size() > kMostText) throw RenderError("the template writes over 64 MiB");
  }
  return Flow::kNext;
}

namespace {

using Statements = std::vector<Statement>;

/// What a value is assigned to: names, or an attribute of a namespace.
struct Target {
  std::vector<std::string> names;
  bool is_tuple = false;
  std::string attribute;
  Place place;

  void assign(Scope& scope, const Value& value) const {
    if (!attribute.empty()) return assign_attribute(scope, value);
    if (!is_tuple) return scope.set(names[0], value);
    const std::vector<Value> items = items_of(value);
    if (items.size() != names.size())
      throw RenderError(
          fmt::format("{}: {} values for {} names", to_text(place), items.size(), names.size()));
    for (std::size_t i = 0; i < items.size(); ++i) scope.set(names[i], items[i]);
  }

 private:
  void assign_attribute(const Scope& scope, const Value& value) const {
    const Value space = scope.get(names[0]);
    const auto* found = space.as<std::shared_ptr<Namespace>>();
    if (found == nullptr)
      throw RenderError(
          fmt::format("{}: {} is {}, expected a namespace", to_text(place), names[0], kind_of(space)));
    (*found)->values.set(attribute, value);
    if (!std::exchange((*found)->changed, true)) scope.budget().changed.push_back(*found);
  }
};

class Parser {
 public:
  Parser(const std::string& source, const std::string& where) : cursor_(tokens_of(source, where), where) {}

  Statements all() {
    Statements out = until({});
    if (!cursor_.sees(TokenKind::kEnd))
      cursor_.refuse(cursor_.peek().place, "expected the end of the template");
    return out;
  }

 private:
  /// Statements up to one of the tags, whose name is not taken yet; none = up to the end.
  Statements until(const std::vector<const char*>& ends) {
    const Cursor::Depth depth(cursor_);
    Statements out;
    while (!cursor_.sees(TokenKind::kEnd)) {
      const Token token = cursor_.next();
      if (token.kind == TokenKind::kText) {
        out.emplace_back([text = token.text](const ScopePtr&, std::string& to) {
          to += text;
          return Flow::kNext;
        });
      } else if (token.kind == TokenKind::kPrintBegin) {
        out.push_back(print());
      } else {
        const auto ends_here = [&](const char* end) { return cursor_.sees_word(end); };
        if (std::any_of(ends.begin(), ends.end(), ends_here)) return out;
        out.push_back(tag());
      }
    }
    if (!ends.empty())
      cursor_.refuse(cursor_.peek().place,
                     fmt::format("the template ends, expected {{% {} %}}", ends.back()));
    return out;
  }

  Statement print() {
    const Place place = cursor_.peek().place;
    const Expression value = parse_tuple(cursor_);
    cursor_.expect(TokenKind::kPrintEnd);
    return [value, place](const ScopePtr& scope, std::string& out) {
      const Value printed = value(scope);
      out += at_place(place, [&] { return to_text(printed); });
      return Flow::kNext;
    };
  }

  Statement tag() {
    const Token name = cursor_.expect(TokenKind::kName);
    if (name.text == "for") return loop();
    if (name.text == "if") return condition();
    if (name.text == "set") return assignment();
    if (name.text == "macro") return macro();
    if (name.text == "generation") return generation();
    if (name.text == "break" || name.text == "continue") {
      if (loops_ == 0) cursor_.refuse(name.place, name.text + " outside a loop");
      cursor_.expect(TokenKind::kTagEnd);
      return [flow = name.text == "break" ? Flow::kBreak : Flow::kContinue](const ScopePtr&, std::string&) {
        return flow;
      };
    }
    cursor_.refuse(name.place,
                   fmt::format("tag {} is not here, expected for, if, set, macro, break, continue or "
                               "generation",
                               printable(name.text)));
  }

  Target target() {
    Target out;
    const bool brackets = cursor_.takes_operator("(");
    out.place = cursor_.peek().place;
    out.names.push_back(cursor_.expect(TokenKind::kName).text);
    if (cursor_.takes_operator(".")) {
      out.attribute = cursor_.expect(TokenKind::kName).text;
      return out;
    }
    while (cursor_.takes_operator(",")) {
      out.is_tuple = true;
      if (!cursor_.sees(TokenKind::kName) || cursor_.sees_word("in")) break;
      out.names.push_back(cursor_.next().text);
    }
    if (brackets) cursor_.expect(TokenKind::kOperator, ")");
    return out;
  }

  Statement assignment() {
    const Target to = target();
    if (cursor_.takes_operator("=")) {
      const Expression value = parse_tuple(cursor_);
      cursor_.expect(TokenKind::kTagEnd);
      return [to, value](const ScopePtr& scope, std::string&) {
        to.assign(*scope, value(scope));
        return Flow::kNext;
      };
    }
    if (!cursor_.sees(TokenKind::kTagEnd))
      cursor_.refuse(cursor_.peek().place, "expected = or the end of the tag");
    cursor_.next();
    const Statements body = until({"endset"});
    end_of("endset");
    return [to, body](const ScopePtr& scope, std::string&) {
      std::string text;
      run(body, std::make_shared<Scope>(scope), text);
      to.assign(*scope, std::move(text));
      return Flow::kNext;
    };
  }

  void end_of(const char* name) {
    cursor_.expect(TokenKind::kName, name);
    cursor_.expect(TokenKind::kTagEnd);
  }

  Statement condition() {
    std::vector<std::pair<Expression, Statements>> branches;
    Statements otherwise;
    while (true) {
      Expression holds = parse_tuple(cursor_, true);
      cursor_.expect(TokenKind::kTagEnd);
      branches.emplace_back(std::move(holds), until({"elif", "else", "endif"}));
      if (cursor_.takes_word("elif")) continue;
      if (cursor_.takes_word("else")) {
        cursor_.expect(TokenKind::kTagEnd);
        otherwise = until({"endif"});
      }
      end_of("endif");
      break;
    }
    return [branches, otherwise](const ScopePtr& scope, std::string& out) {
      for (const auto& [holds, body] : branches) {
        if (is_true(holds(scope))) return run(body, scope, out);
      }
      return run(otherwise, scope, out);
    };
  }

  struct LoopTag {
    Target to;
    Expression items, filter;
    bool is_filtered = false;
    Statements body, otherwise;
    Place place;
    i64 depth = 1;
  };

  Statement loop() {
    LoopTag tag;
    tag.place = cursor_.peek().place;
    tag.to = target();
    if (!tag.to.attribute.empty()) cursor_.refuse(tag.place, "a loop over an attribute, expected names");
    cursor_.expect(TokenKind::kName, "in");
    tag.items = parse_tuple(cursor_, false);
    if (cursor_.takes_word("if")) tag.is_filtered = true, tag.filter = parse_expression(cursor_);
    if (cursor_.sees_word("recursive")) cursor_.refuse(cursor_.peek().place, "recursive is not here");
    cursor_.expect(TokenKind::kTagEnd);
    tag.depth = ++loops_;
    tag.body = until({"else", "endfor"});
    --loops_;
    if (cursor_.takes_word("else")) {
      cursor_.expect(TokenKind::kTagEnd);
      tag.otherwise = until({"endfor"});
    }
    end_of("endfor");
    return [tag](const ScopePtr& scope, std::string& out) { return run_loop(tag, scope, out); };
  }

  static Flow run_loop(const LoopTag& tag, const ScopePtr& scope, std::string& out) {
    const Value over = tag.items(scope);
    std::vector<Value> items = at_place(tag.place, [&] { return items_of(over); });
    if (tag.is_filtered) {
      std::erase_if(items, [&](const Value& value) {
        const auto inner = std::make_shared<Scope>(scope);
        tag.to.assign(*inner, value);
        return !is_true(tag.filter(inner));
      });
    }
    if (items.empty()) return run(tag.otherwise, std::make_shared<Scope>(scope), out);
    const auto all = std::make_shared<const List>(List{items});
    for (std::size_t i = 0; i < items.size(); ++i) {
      const auto inner = std::make_shared<Scope>(scope);
      inner->set("loop", std::make_shared<const Loop>(Loop{all, i, tag.depth}));
      tag.to.assign(*inner, items[i]);
      if (run(tag.body, inner, out) == Flow::kBreak) break;
    }
    return Flow::kNext;
  }

  struct Macro {
    std::vector<std::string> names;
    std::vector<std::pair<std::size_t, Expression>> defaults;
    Statements body;
  };

  Statement macro() {
    const std::string name = cursor_.expect(TokenKind::kName).text;
    const auto made = std::make_shared<Macro>();
    cursor_.expect(TokenKind::kOperator, "(");
    while (!cursor_.takes_operator(")")) {
      made->names.push_back(cursor_.expect(TokenKind::kName).text);
      if (cursor_.takes_operator("="))
        made->defaults.emplace_back(made->names.size() - 1, parse_expression(cursor_));
      if (!cursor_.takes_operator(",") && !cursor_.sees_operator(")"))
        cursor_.expect(TokenKind::kOperator, ")");
    }
    cursor_.expect(TokenKind::kTagEnd);
    const i64 loops = std::exchange(loops_, 0);
    made->body = until({"endmacro"});
    loops_ = loops;
    end_of("endmacro");
    return [name, made](const ScopePtr& scope, std::string&) {
      // The scope owns the macro, so the macro does not own the scope.
      const std::weak_ptr<Scope> around = scope;
      scope->set(name, make_function([made, around, name](const Arguments& arguments) {
                   const ScopePtr outer = around.lock();
                   if (!outer)
                     throw RenderError(fmt::format("macro {} is called outside the loop that has it", name));
                   return run_macro(*made, outer, arguments);
                 }));
      return Flow::kNext;
    };
  }

  static Value run_macro(const Macro& macro, const ScopePtr& outer, const Arguments& arguments) {
    const Budget::Call call(outer->budget());
    const auto scope = std::make_shared<Scope>(outer);
    std::vector<const char*> names;
    for (const std::string& name : macro.names) names.push_back(name.c_str());
    const Given given(arguments, names);
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (given.find(i) != nullptr) {
        scope->set(macro.names[i], *given.find(i));
        continue;
      }
      const auto found = std::find_if(macro.defaults.begin(), macro.defaults.end(),
                                      [&](const auto& entry) { return entry.first == i; });
      scope->set(macro.names[i],
                 found != macro.defaults.end() ? found->second(scope) : Value(Undefined{names[i]}));
    }
    std::string out;
    run(macro.body, scope, out);
    return out;
  }

  Statement generation() {
    cursor_.expect(TokenKind::kTagEnd);
    const i64 loops = std::exchange(loops_, 0);
    const Statements body = until({"endgeneration"});
    loops_ = loops;
    end_of("endgeneration");
    return [body](const ScopePtr& scope, std::string& out) {
      return run(body, std::make_shared<Scope>(scope), out);
    };
  }

  Cursor cursor_;
  i64 loops_ = 0;
};

}  // namespace

Template::Template(const std::string& source, const std::string& where)
    : statements_(Parser(source, where).all()) {}

std::string Template::render(const Json& names) const {
  Budget budget;
  const auto outermost = std::make_shared<Scope>(&budget);
  for (const auto& [name, function] : global_functions()) outermost->set(name, function);
  for (const auto& [name, value] : names.items()) outermost->set(name, from_json(value));
  std::string out;
  run(statements_, std::make_shared<Scope>(outermost), out);
  return out;
}

}  // namespace hetermoe::jinja
