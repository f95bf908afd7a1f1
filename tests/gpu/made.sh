#!/usr/bin/env bash
# Makes the kernel file of a .diff, a kernel that ships with a mistake in it:
#
#   tests/gpu/made.sh tests/gpu/wrong/NAME.diff NAME.cu
#
# The lines before the diff come first in its front matter, as in the other files of that folder. Run from the repository's root.
set -eu
diff=$(realpath "$1")
kernel=$(sed -n 's,^--- a/,,p' "$diff")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/$(dirname "$kernel")"
cp "$kernel" "$folder/$kernel"
# Nobody's repository: within one, git apply would take the diff's paths for those of its root.
(cd "$folder" && GIT_CEILING_DIRECTORIES=$(dirname "$folder") git apply "$diff")
sed "1r "<(sed -n '/^--- /q; /^#/p' "$diff") "$folder/$kernel" >"$2"
