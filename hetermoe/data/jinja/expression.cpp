#include "hetermoe/data/jinja/expression.h"

#include <fmt/format.h>

#include <algorithm>

#include "hetermoe/base/error.h"
#include "hetermoe/data/jinja/functions.h"

// Expressions become functions of the names in force.
namespace hetermoe::jinja {
namespace {

Expression parse_unary(Cursor& cursor, bool with_filter = true);

Expression constant(Value value) {
  return [value = std::move(value)](const ScopePtr&) { return value; };
}

/// run(values of the operands), with the place in what it throws.
template <class F>
Expression binary(const Place& place, Expression a, Expression b, F run) {
  return [=](const ScopePtr& scope) -> Value {
    scope->budget().take();
    const Value left = a(scope), right = b(scope);
    return at_place(place, [&]() -> Value { return run(left, right); });
  };
}

struct ArgumentList {
  std::vector<Expression> positional;
  std::vector<std::pair<std::string, Expression>> named;
  Arguments values(const ScopePtr& scope) const {
    Arguments out;
    for (const Expression& e : positional) out.positional.push_back(e(scope));
    for (const auto& [name, e] : named) out.named.emplace_back(name, e(scope));
    return out;
  }
};

/// After the opening bracket, up to the closing one.
ArgumentList parse_arguments(Cursor& cursor) {
  ArgumentList out;
  while (!cursor.takes_operator(")")) {
    if (cursor.sees_operator("*") || cursor.sees_operator("**"))
      cursor.refuse(cursor.peek().place, "* and ** before arguments are not here: name each argument");
    const bool is_named = cursor.sees(TokenKind::kName) && cursor.peek(1).kind == TokenKind::kOperator &&
                          cursor.peek(1).text == "=";
    if (is_named) {
      const std::string name = cursor.next().text;
      cursor.next();
      out.named.emplace_back(name, parse_expression(cursor));
    } else {
      if (!out.named.empty())
        cursor.refuse(cursor.peek().place, "an argument without a name after one with a name");
      out.positional.push_back(parse_expression(cursor));
    }
    if (!cursor.takes_operator(",") && !cursor.sees_operator(")")) cursor.expect(TokenKind::kOperator, ")");
  }
  return out;
}

Expression parse_list(Cursor& cursor) {
  std::vector<Expression> items;
  while (!cursor.takes_operator("]")) {
    items.push_back(parse_expression(cursor));
    if (!cursor.takes_operator(",") && !cursor.sees_operator("]")) cursor.expect(TokenKind::kOperator, "]");
  }
  return [items](const ScopePtr& scope) {
    std::vector<Value> out;
    for (const Expression& e : items) out.push_back(e(scope));
    return make_list(std::move(out));
  };
}

Expression parse_dict(Cursor& cursor) {
  std::vector<std::pair<Expression, Expression>> entries;
  const Place place = cursor.peek().place;
  while (!cursor.takes_operator("}")) {
    Expression key = parse_expression(cursor);
    cursor.expect(TokenKind::kOperator, ":");
    entries.emplace_back(std::move(key), parse_expression(cursor));
    if (!cursor.takes_operator(",") && !cursor.sees_operator("}")) cursor.expect(TokenKind::kOperator, "}");
  }
  return [entries, place](const ScopePtr& scope) {
    Dict out;
    for (const auto& [key, value] : entries) {
      const Value name = key(scope);
      if (name.text() == nullptr)
        throw RenderError(fmt::format("{}: a key is {}, expected a string", to_text(place), kind_of(name)));
      out.set(*name.text(), value(scope));
    }
    return make_dict(std::move(out));
  };
}

Expression parse_name(const Token& token) {
  if (token.text == "true" || token.text == "True") return constant(true);
  if (token.text == "false" || token.text == "False") return constant(false);
  if (token.text == "none" || token.text == "None") return constant(None{});
  return [name = token.text](const ScopePtr& scope) {
    scope->budget().take();
    return scope->get(name);
  };
}

Expression parse_number(Cursor& cursor, const Token& token) {
  if (token.kind == TokenKind::kFloat) return constant(std::strtod(token.text.c_str(), nullptr));
  if (token.text.size() > 18) cursor.refuse(token.place, "a number beyond 64 bits");
  return constant(static_cast<i64>(std::stoll(token.text)));
}

Expression parse_primary(Cursor& cursor) {
  const Token token = cursor.next();
  if (token.kind == TokenKind::kName) return parse_name(token);
  if (token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat)
    return parse_number(cursor, token);
  if (token.kind == TokenKind::kString) {
    std::string text = token.text;
    while (cursor.sees(TokenKind::kString)) text += cursor.next().text;
    return constant(std::move(text));
  }
  if (token.kind == TokenKind::kOperator && token.text == "[") return parse_list(cursor);
  if (token.kind == TokenKind::kOperator && token.text == "{") return parse_dict(cursor);
  if (token.kind == TokenKind::kOperator && token.text == "(") {
    if (cursor.takes_operator(")")) return constant(make_list({}, true));
    Expression inner = parse_tuple(cursor);
    cursor.expect(TokenKind::kOperator, ")");
    return inner;
  }
  cursor.refuse(token.place, fmt::format("got {}, expected a value",
                                         printable(token.kind == TokenKind::kText ? "text" : token.text)));
}

/// What stands in the brackets of a[...].
Expression parse_subscript(Cursor& cursor, Expression of, const Place& place) {
  std::vector<Expression> bounds;
  bool is_slice = false;
  const auto read_bound = [&] {
    const bool none = cursor.sees_operator(":") || cursor.sees_operator("]");
    bounds.push_back(none ? constant(None{}) : parse_expression(cursor));
  };
  read_bound();
  while (bounds.size() < 3 && cursor.takes_operator(":")) is_slice = true, read_bound();
  cursor.expect(TokenKind::kOperator, "]");
  if (!is_slice) return binary(place, std::move(of), bounds[0], item);
  bounds.resize(3, constant(None{}));
  return [of, bounds, place](const ScopePtr& scope) {
    const Value value = of(scope), begin = bounds[0](scope), end = bounds[1](scope), step = bounds[2](scope);
    return at_place(place, [&] { return slice(value, begin, end, step); });
  };
}

Expression parse_call(Cursor& cursor, Expression function, const Place& place) {
  return [function, place, arguments = parse_arguments(cursor)](const ScopePtr& scope) {
    scope->budget().take();
    const Value called = function(scope);
    const Arguments values = arguments.values(scope);
    return at_place(place, [&] { return call(called, values); });
  };
}

/// One of .name [key] (arguments) after a value; false = there is none.
bool parse_postfix(Cursor& cursor, Expression& of) {
  const Place place = cursor.peek().place;
  if (cursor.takes_operator(".")) {
    if (cursor.sees(TokenKind::kInteger)) {
      of = binary(place, of, parse_number(cursor, cursor.next()), item);
      return true;
    }
    const std::string name = cursor.expect(TokenKind::kName).text;
    of = [of, name, place](const ScopePtr& scope) {
      scope->budget().take();
      const Value value = of(scope);
      return at_place(place, [&] { return attribute(value, name); });
    };
    return true;
  }
  if (cursor.takes_operator("[")) {
    of = parse_subscript(cursor, of, place);
    return true;
  }
  if (!cursor.takes_operator("(")) return false;
  of = parse_call(cursor, of, place);
  return true;
}

/// After `is`. What follows a test's name without brackets is its argument.
Expression parse_test(Cursor& cursor, Expression of) {
  const bool is_negated = cursor.takes_word("not");
  const Token name = cursor.expect(TokenKind::kName);
  const TestRow* test = find_test(name.text);
  if (test == nullptr)
    cursor.refuse(name.place,
                  fmt::format("test {} is not here, expected one of {}", name.text, test_names()));
  ArgumentList arguments;
  if (cursor.takes_operator("(")) {
    arguments = parse_arguments(cursor);
  } else {
    const Token& next = cursor.peek();
    if (cursor.sees_word("is"))
      cursor.refuse(next.place, "a test after a test, expected brackets around the first");
    const bool word =
        next.kind == TokenKind::kName && next.text != "else" && next.text != "or" && next.text != "and";
    const bool value = next.kind == TokenKind::kString || next.kind == TokenKind::kInteger ||
                       next.kind == TokenKind::kFloat || cursor.sees_operator("[") ||
                       cursor.sees_operator("{");
    if (word || value) {
      Expression argument = parse_primary(cursor);
      Cursor::Depth links(cursor);
      while (parse_postfix(cursor, argument)) links.deeper();
      arguments.positional.push_back(std::move(argument));
    }
  }
  return [of, test, arguments, is_negated, place = name.place](const ScopePtr& scope) -> Value {
    scope->budget().take();
    const Value value = of(scope);
    const Arguments values = arguments.values(scope);
    return at_place(place, [&] { return test->run(value, values); }) != is_negated;
  };
}

Expression parse_filter(Cursor& cursor, Expression of) {
  const Token name = cursor.expect(TokenKind::kName);
  const Filter filter = find_filter(name.text);
  if (filter == nullptr)
    cursor.refuse(name.place,
                  fmt::format("filter {} is not here, expected one of {}", name.text, filter_names()));
  ArgumentList arguments;
  if (cursor.takes_operator("(")) arguments = parse_arguments(cursor);
  return [of, filter, arguments, place = name.place](const ScopePtr& scope) {
    scope->budget().take();
    const Value value = of(scope);
    const Arguments values = arguments.values(scope);
    return at_place(place, [&] { return filter(value, values); });
  };
}

Expression parse_unary(Cursor& cursor, bool with_filter) {
  const Cursor::Depth depth(cursor);
  const Place place = cursor.peek().place;
  Expression out;
  if (cursor.sees_operator("-") || cursor.sees_operator("+")) {
    const bool minus = cursor.next().text == "-";
    const Expression of = parse_unary(cursor, false);
    out = binary(place, constant(static_cast<i64>(minus ? -1 : 1)), of,
                 [](const Value& sign, const Value& value) {
                   if (!value.is_number()) throw RenderError("a sign before " + kind_of(value));
                   return arithmetic("*", value, sign);
                 });
  } else {
    out = parse_primary(cursor);
  }
  Cursor::Depth links(cursor);
  while (parse_postfix(cursor, out)) links.deeper();
  return with_filter ? parse_filters(cursor, std::move(out)) : out;
}

using Level = Expression (*)(Cursor&);

/// Operators of one level, from the left.
Expression parse_arithmetic(Cursor& cursor, Level inner, std::initializer_list<const char*> operators) {
  Expression out = inner(cursor);
  Cursor::Depth links(cursor);
  while (true) {
    const Token token = cursor.peek();
    const bool found =
        token.kind == TokenKind::kOperator &&
        std::any_of(operators.begin(), operators.end(), [&](const char* op) { return token.text == op; });
    if (!found) return out;
    links.deeper();
    cursor.next();
    out = binary(token.place, out, inner(cursor),
                 [op = token.text](const Value& a, const Value& b) { return arithmetic(op, a, b); });
  }
}

Expression parse_factor(Cursor& cursor) {
  Expression out = parse_unary(cursor);
  if (cursor.sees_operator("**")) cursor.refuse(cursor.peek().place, "** is not here: multiply");
  return out;
}

Expression parse_product(Cursor& cursor) {
  return parse_arithmetic(cursor, parse_factor, {"*", "/", "//", "%"});
}

Expression parse_concatenation(Cursor& cursor) {
  Expression out = parse_product(cursor);
  Cursor::Depth links(cursor);
  while (cursor.sees_operator("~")) {
    links.deeper();
    const Place place = cursor.next().place;
    out = binary(place, out, parse_product(cursor), [](const Value& a, const Value& b) {
      return arithmetic("+", Value(to_text(a)), Value(to_text(b)));
    });
  }
  return out;
}

Expression parse_sum(Cursor& cursor) { return parse_arithmetic(cursor, parse_concatenation, {"+", "-"}); }

using Comparison = std::function<bool(const Value&, const Value&)>;

/// The comparison that the cursor sees, which it takes; null = none.
Comparison parse_comparison_operator(Cursor& cursor) {
  if (cursor.takes_operator("==")) return equal;
  if (cursor.takes_operator("!=")) return [](const Value& a, const Value& b) { return !equal(a, b); };
  if (cursor.takes_operator("<=")) return [](const Value& a, const Value& b) { return compare(a, b) <= 0; };
  if (cursor.takes_operator(">=")) return [](const Value& a, const Value& b) { return compare(a, b) >= 0; };
  if (cursor.takes_operator("<")) return [](const Value& a, const Value& b) { return compare(a, b) < 0; };
  if (cursor.takes_operator(">")) return [](const Value& a, const Value& b) { return compare(a, b) > 0; };
  if (cursor.takes_word("in")) return [](const Value& a, const Value& b) { return contains(b, a); };
  if (cursor.sees_word("not") && cursor.peek(1).kind == TokenKind::kName && cursor.peek(1).text == "in") {
    cursor.next(), cursor.next();
    return [](const Value& a, const Value& b) { return !contains(b, a); };
  }
  return nullptr;
}

/// a < b < c is (a < b) and (b < c).
Expression parse_comparison(Cursor& cursor) {
  struct Part {
    Comparison holds;
    Place place;
    Expression with;
  };
  Expression first = parse_sum(cursor);
  std::vector<Part> parts;
  while (true) {
    const Place place = cursor.peek().place;
    Comparison holds = parse_comparison_operator(cursor);
    if (!holds) break;
    parts.push_back({std::move(holds), place, parse_sum(cursor)});
  }
  if (parts.empty()) return first;
  return [first, parts](const ScopePtr& scope) -> Value {
    scope->budget().take();
    Value left = first(scope);
    for (const Part& part : parts) {
      Value right = part.with(scope);
      if (!at_place(part.place, [&] { return part.holds(left, right); })) return false;
      left = std::move(right);
    }
    return true;
  };
}

Expression parse_not(Cursor& cursor) {
  const Cursor::Depth depth(cursor);
  if (!cursor.takes_word("not")) return parse_comparison(cursor);
  return [of = parse_not(cursor)](const ScopePtr& scope) -> Value { return !is_true(of(scope)); };
}

Expression parse_and(Cursor& cursor) {
  Expression out = parse_not(cursor);
  Cursor::Depth links(cursor);
  while (cursor.takes_word("and")) {
    links.deeper();
    out = [a = out, b = parse_not(cursor)](const ScopePtr& scope) {
      Value left = a(scope);
      return is_true(left) ? b(scope) : left;
    };
  }
  return out;
}

Expression parse_or(Cursor& cursor) {
  Expression out = parse_and(cursor);
  Cursor::Depth links(cursor);
  while (cursor.takes_word("or")) {
    links.deeper();
    out = [a = out, b = parse_and(cursor)](const ScopePtr& scope) {
      Value left = a(scope);
      return is_true(left) ? left : b(scope);
    };
  }
  return out;
}

}  // namespace

Expression parse_filters(Cursor& cursor, Expression of) {
  Cursor::Depth links(cursor);
  while (true) {
    links.deeper();
    if (cursor.takes_operator("|"))
      of = parse_filter(cursor, std::move(of));
    else if (cursor.takes_word("is"))
      of = parse_test(cursor, std::move(of));
    else if (!cursor.sees_operator("(") || !parse_postfix(cursor, of))
      return of;
  }
}

Expression parse_expression(Cursor& cursor, bool with_condition) {
  const Cursor::Depth depth(cursor);
  Expression out = parse_or(cursor);
  Cursor::Depth links(cursor);
  while (with_condition && cursor.takes_word("if")) {
    links.deeper();
    Expression condition = parse_or(cursor);
    Expression otherwise =
        cursor.takes_word("else") ? parse_expression(cursor) : constant(Undefined{"if without else"});
    out = [=](const ScopePtr& scope) { return is_true(condition(scope)) ? out(scope) : otherwise(scope); };
  }
  return out;
}

Expression parse_tuple(Cursor& cursor, bool with_condition) {
  std::vector<Expression> items = {parse_expression(cursor, with_condition)};
  if (!cursor.sees_operator(",")) return items[0];
  while (cursor.takes_operator(",")) {
    const bool ends =
        cursor.sees(TokenKind::kTagEnd) || cursor.sees(TokenKind::kPrintEnd) || cursor.sees_operator(")");
    if (ends) break;
    items.push_back(parse_expression(cursor, with_condition));
  }
  return [items](const ScopePtr& scope) {
    std::vector<Value> out;
    for (const Expression& e : items) out.push_back(e(scope));
    return make_list(std::move(out), true);
  };
}

}  // namespace hetermoe::jinja
