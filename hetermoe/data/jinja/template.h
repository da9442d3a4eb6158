#pragma once
#include <string>

#include "hetermoe/base/json.h"
#include "hetermoe/data/jinja/scope.h"

namespace hetermoe::jinja {

/// A chat template: the part of Jinja that those of models use, with the semantics of Jinja2 as transformers
/// sets it up (trim_blocks, lstrip_blocks, loop controls, a sandbox in which no value changes). Thread-safe.
///
/// Tags: for (with if, else, break, continue), if, set, macro, generation (its contents alone count).
/// Expressions, filters, tests and methods: docs/data.md. strftime_now is not defined: a run reads the same
/// text every day.
class Template {
 public:
  /// Throws ConfigError that begins with `where`, line and column for what is not Jinja or not here.
  Template(const std::string& source, const std::string& where);
  /// names: an object with what the template may ask for. Throws RenderError for what it cannot do with it.
  std::string render(const Json& names) const;

 private:
  std::vector<Statement> statements_;
};

/// Runs statements until one leaves the loop.
Flow run(const std::vector<Statement>& statements, const ScopePtr& scope, std::string& out);

}  // namespace hetermoe::jinja
