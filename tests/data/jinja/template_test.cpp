#include "hetermoe/data/jinja/template.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include "tests/support/error_of.h"

// Chat templates against Jinja2, see tests/parity/make_chat_goldens.py.
namespace hetermoe::jinja {
namespace {

const std::string kTemplates = HM_SOURCE_DIR "/tests/data/jinja/";

const Json& golden_templates() {
  static const Json all = read_json(kTemplates + "golden.json");
  return all;
}

/// Null where the template ends with an error.
Json rendered(const Template& of, const Json& names, std::string* error = nullptr) {
  try {
    return of.render(names);
  } catch (const RenderError& refused) {
    if (error != nullptr) *error = refused.what();
    return nullptr;
  }
}

// Claim (JinjaTemplate.*, ModelTemplate.*): chat templates of models are rendered as Jinja2 does, errors
// included; answers are counted by what they begin and end with
TEST(JinjaTemplate, ShapesOfModelsOverRandomConversations) {
  int compared = 0;
  for (const auto& [name, texts] : golden_templates()["templates"].items()) {
    const Template shape(read_text(kTemplates + "templates/" + name + ".jinja"), name);
    for (std::size_t t = 0; t < texts.size(); ++t) {
      Json names = golden_templates()["names"];
      names["messages"] = golden_templates()["talks"][t];
      for (const bool ask : {false, true}) {
        names["add_generation_prompt"] = ask;
        std::string error;
        EXPECT_EQ(rendered(shape, names, &error), texts[t][ask ? 1 : 0])
            << name << " talk " << t << (ask ? " asked " : " ") << error;
        ++compared;
      }
    }
  }
  EXPECT_GE(compared, 300);
}

TEST(JinjaTemplate, SmallAndRandomTemplates) {
  int compared = 0, errors = 0;
  for (const Json& snippet : golden_templates()["snippets"]) {
    const auto source = snippet[0].get<std::string>();
    std::string error;
    Json got;
    try {
      got = rendered(Template(source, "snippet"), golden_templates()["context"], &error);
    } catch (const ConfigError& refused) {
      error = refused.what();
    }
    EXPECT_EQ(got, snippet[1]) << source << " " << error;
    ++compared, errors += snippet[1].is_null();
  }
  EXPECT_GE(compared, 1000);
  EXPECT_LT(errors, compared / 2);
}

TEST(JinjaTemplate, WhatIsNotHereIsRefusedByNameWithLineAndColumn) {
  const auto refused = [](const std::string& source) {
    return error_of<ConfigError>([&] { Template(source, "x.jinja"); });
  };
  EXPECT_EQ(
      refused("a\n  {% include 'b' %}"),
      "[x.jinja] line 2, column 6: tag include is not here, expected for, if, set, macro, break, continue or "
      "generation");
  EXPECT_TRUE(refused("{{ x | wordwrap }}")
                  .starts_with("[x.jinja] line 1, column 8: filter wordwrap is not here, expected"));
  EXPECT_TRUE(refused("{{ x is odder }}")
                  .starts_with("[x.jinja] line 1, column 9: test odder is not here, expected"));
  EXPECT_EQ(refused("{% if x %}\n"), "[x.jinja] line 1, column 11: the template ends, expected {% endif %}");
  EXPECT_EQ(refused("{{ x"), "[x.jinja] line 1, column 1: a tag that does not end: expected }}");
  EXPECT_EQ(refused("{{ 'x }}"), "[x.jinja] line 1, column 4: a string that does not end: expected '");
  EXPECT_EQ(refused("{# x"), "[x.jinja] line 1, column 1: a comment that does not end: expected #}");
  EXPECT_EQ(refused("{% break %}"), "[x.jinja] line 1, column 4: break outside a loop");
  EXPECT_EQ(refused("{{ 2 ** 3 }}"), "[x.jinja] line 1, column 6: ** is not here: multiply");
  EXPECT_EQ(refused("{{ x) }}"), "[x.jinja] line 1, column 5: ) closes nothing");
  EXPECT_TRUE(refused("{{ " + std::string(1000, '(') + "x" + std::string(1000, ')') + " }}")
                  .find("too many values lie in each other") != std::string::npos);
  EXPECT_TRUE(refused("{% raw %}a{% endraw %}").find("raw is not here") != std::string::npos);
}

TEST(JinjaTemplate, WhatItDoesWrongIsToldWithItsPlace) {
  const auto error = [](const std::string& source) {
    std::string out;
    rendered(Template(source, "x"), Json::object(), &out);
    return out;
  };
  EXPECT_EQ(error("a\n{{ raise_exception('No!') }}"),
            "line 2, column 19: the template refuses this conversation: No!");
  EXPECT_EQ(error("{{ x.y.z }}"), "line 1, column 5: x is undefined, so it has no y");
  EXPECT_EQ(error("{{ strftime_now('%d') }}"),
            "line 1, column 16: strftime_now is undefined, expected a function");
  EXPECT_EQ(error("{{ 'a' + 1 }}"), "line 1, column 8: + of a string and an integer");
  EXPECT_EQ(error("{{ 'a'.strip(1, 2) }}"), "line 1, column 13: got 2 arguments, expected at most 1");
}

TEST(JinjaTemplate, TakesNoMoreThanItsBudget) {
  const auto error = [](const std::string& source) {
    std::string out;
    rendered(Template(source, "x"), Json::object(), &out);
    return out;
  };
  const std::string loop = "{% for a in range(99999) %}";
  EXPECT_NE(error(loop + loop + loop + "x{% endfor %}{% endfor %}{% endfor %}").find("takes more than"),
            std::string::npos);
  EXPECT_NE(error("{{ 'abcdefgh' * 99999999999 }}").find("too long"), std::string::npos);
  EXPECT_NE(error("{{ range(999999) }}").find("range of over 100000"), std::string::npos);
  EXPECT_NE(error("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("macros call each other"),
            std::string::npos);
}

/// The heap that templates leave behind whose namespaces hold themselves and each other.
TEST(JinjaTemplate, NamespacesThatHoldThemselvesEndWithTheText) {
  const Template holds(
      "{% set a = namespace(text='x' * 100000) %}{% set b = namespace(a=a) %}{% set a.all = [a, b] %}"
      "{{ a.all[0].text | length }}",
      "x");
  EXPECT_EQ(holds.render(Json::object()), "100000");
  const std::size_t before = mallinfo2().uordblks;
  for (int i = 0; i < 100; ++i) holds.render(Json::object());
  EXPECT_LT(mallinfo2().uordblks, before + 1'000'000) << "10 MB are 100 texts";
}

}  // namespace
}  // namespace hetermoe::jinja
