#pragma once

// The fixed parts of the HTML report, as the build embeds them (cmake/embed.cmake). They read the JSON that
// report_data() writes.
namespace hetermoe {

extern const char* const kPageStyle;  ///< page.css
extern const char* const
    kPageScript;  ///< page_data.js, page_picture.js and page_controls.js, one after another
extern const char* const kPlotScript;  ///< page_plots.js, a script of its own
extern const char* const kLiveScript;  ///< page_live.js, which comes after them on a live page

}  // namespace hetermoe
