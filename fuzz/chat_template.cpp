#include "hetermoe/data/jinja/template.h"

#include "fuzz/target.h"
#include "hetermoe/base/error.h"

// Chat templates of models: what is read is rendered over a conversation, within its budget.
namespace hetermoe::fuzz {
namespace {

void run(const std::string& input) {
  const jinja::Template read(input, "input");
  const Json names = {
      {"messages",
       {{{"role", "system"}, {"content", "a"}},
        {{"role", "user"}, {"content", " b\n"}},
        {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {{{"function", {{"name", "f"}}}}}}},
        {{"role", "tool"}, {"content", "é"}}}},
      {"tools", nullptr},
      {"add_generation_prompt", true},
      {"bos_token", "<s>"}};
  if (read.render(names) != read.render(names)) throw std::logic_error("two texts of one template");
}

std::vector<std::string> seeds() {
  return {
      "{{- bos_token }}{%- for m in messages if m.content is string %}{% if loop.first and m['role'] != 'x' "
      "%}"
      "{{ '<|' ~ m.role + '|>\\n' }}{%- elif not loop.last %}{{ m.content | trim | upper }}{% else %}-{% "
      "endif %}"
      "{% endfor %}{% if add_generation_prompt %}a{% endif %}",
      "{% set ns = namespace(n=0) %}{% for m in messages[::-1] %}{% set ns.n = ns.n + loop.index0 * 2 // 1 % "
      "7 %}"
      "{{ m.content.split('b')[-1].strip('\\n') if m.content else none }}{% continue %}{% endfor %}{{ ns.n "
      "}}",
      "{% macro f(a, b=1) -%}\n  [{{ a | tojson(indent=2) }}{{ b }}]\n{%- endmacro %}{{ f(messages[1:3]) }}"
      "{{ f(b=2, a={'k': [1, 2.5, true]}.items() | list) }}{# c #}",
      "{% set x %}a{% endset %}{{ x * 3 }}{% generation %}{{ messages | map(attribute='role') | join(',') }}"
      "{% endgeneration %}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ range(3) "
      "| list }}",
      "{% if tools is not none and 'a' in tools or 1 < 2 <= 3 %}{{ raise_exception('x') }}{% endif %}{% "
      "break %}"};
}

}  // namespace

extern const Target kChatTemplate{"chat_template", run, seeds};

}  // namespace hetermoe::fuzz
