#!/usr/bin/env bash
# Makes the kernel files that the sessions name from the patches here, in candidates/ of the folder it is started in.
set -eu
patches=$(cd "$(dirname "$0")" && pwd)
mkdir -p candidates
for patch in "$patches"/*.patch; do
    name=$(basename "$patch" .patch)
    # `alone`, `tail` and `leave` are changes to the kernel that reads few rows directly; the others to the one before it.
    case $name in alone-* | tail-* | leave-*) commit=4746f1e ;; *) commit=b97457e ;; esac
    git -C "$patches" show "$commit:kernels/cuda/nvidia-h200/${name##*-}.cu" >"candidates/$name.cu"
    patch --silent "candidates/$name.cu" "$patch"
done
