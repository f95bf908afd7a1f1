#!/usr/bin/env bash
# Makes the kernel files that the sessions name from the patches here, in candidates/ of the folder it is started in.
# A patch's first line names the commit whose kernel it changes; one that names no folder changes a kernel of the H200's.
set -eu
patches=$(cd "$(dirname "$0")" && pwd)
mkdir -p candidates
for patch in "$patches"/*.patch; do
    name=$(basename "$patch" .patch)
    read -r _ commit <"$patch"
    kernel=$(sed -n 's,^--- \(a/\)\{0\,1\},,p' "$patch")
    [[ $kernel == */* ]] || kernel=kernels/cuda/nvidia-h200/$kernel
    git -C "$patches" show "$commit:$kernel" >"candidates/$name.cu"
    patch --silent "candidates/$name.cu" "$patch"
done
