#!/bin/sh
# Turns the plain comments of a public header into those that Doxygen reads: `// text` before a declaration, `; // text`
# after a field, and in C `/* text */` in both places. What looks like a command of Doxygen or a tag is escaped.
sed -E \
  -e 's|\\|\\\\|g; s|@|\\@|g' \
  -e '/\/\//s|<([^>]*)>|\&lt;\1\&gt;|g' \
  -e 's|^( {6,})// ?|\1///< |' -e 's|^( *)// ?|\1/// |' \
  -e 's|([;,]) +// |\1 ///< |' \
  -e 's|^( *)/\* |\1/** |' \
  -e 's|([;,]) +/\* |\1 /**< |' \
  "$1"
