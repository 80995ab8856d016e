#include "base/text.h"

#include "tw_test.h"

TW_TEST(a_path_ends_in_its_file_and_a_package_in_its_folder) {
    TW_CHECK(strcmp(tw_path_end("/srv/app/serving.py"), "serving.py") == 0);
    TW_CHECK(strcmp(tw_path_end("serving.py"), "serving.py") == 0);
    TW_CHECK(strcmp(tw_path_end("/usr/lib/python3/re/__init__.py"), "re/__init__.py") == 0);
    TW_CHECK(strcmp(tw_path_end("re/__init__.py"), "re/__init__.py") == 0);
    TW_CHECK(strcmp(tw_path_end("/__init__.py"), "__init__.py") == 0);
    TW_CHECK(strcmp(tw_path_end("<string>"), "<string>") == 0);
    TW_CHECK(strcmp(tw_path_end(""), "") == 0);
}
