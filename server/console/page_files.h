// The files of the console's page, which are part of the program (server/console/page).
#ifndef RESIDENT_SERVER_CONSOLE_PAGE_FILES_H_
#define RESIDENT_SERVER_CONSOLE_PAGE_FILES_H_

namespace resident {

extern const char kPageHtml[];
extern const char kPageCss[];
extern const char kPageScript[];
extern const char kPageIcon[];

}  // namespace resident

#endif  // RESIDENT_SERVER_CONSOLE_PAGE_FILES_H_
