#pragma once

// The fixed parts of the HTML report. They read the JSON that report_data() writes.
namespace hetermoe {

extern const char* const kPageStyle;   ///< content of <style>
extern const char* const kPageScript;  ///< content of <script>

}  // namespace hetermoe
