#!/usr/bin/env bash
# The eleven distributions as a user gets them: each wheel built from its sdist, all installed into a
# new environment, and tested from a folder outside the checkout. Needs `make install` first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

checkout=$PWD
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1

plugins=()
for manifest in plugins/*/pyproject.toml; do
    plugins+=("$(basename "$(dirname "$manifest")")")
done

echo "== build"
for project in . "${plugins[@]/#/plugins/}" playground; do
    .venv/bin/python -m build --no-isolation --outdir "$room/dist" "$project" >"$room/build.log" 2>&1 ||
        { cat "$room/build.log"; exit 1; }
done
ls "$room/dist"

echo "== install"
.venv/bin/python -m venv "$room/venv"
python=$room/venv/bin/python
install=("$python" -m pip install --quiet)
ours=(attnreg attnreg-playground)
for plugin in "${plugins[@]}"; do
    ours+=("attnreg-${plugin//_/-}")
done
"${install[@]}" "$(grep '^torch==' constraints.txt)"
# Ours come from the wheels alone, whatever an index may hold under the same names.
"${install[@]}" --no-index --no-deps --find-links "$room/dist" "${ours[@]}"
# They are there already, so this brings only what they need.
"${install[@]}" -c constraints.txt 'attnreg[all,playground]' 'attnreg-playground[models]' \
    hypothesis pytest pytest-benchmark pytest-timeout
"$python" -m pip check

echo "== test"
mkdir "$room/run"
cp pyproject.toml tests/conftest.py .ci/smoke.py "$room/run"
for plugin in "${plugins[@]}"; do
    mkdir -p "$room/run/plugins/$plugin"
    cp -r "plugins/$plugin/tests" "$room/run/plugins/$plugin"
done
cd "$room/run"
"$python" smoke.py "${plugins[@]}"
ATTNREG_NO_SKIPS=1 "$room/venv/bin/pytest" plugins

echo "== add and remove one plugin"
listed() {
    "$room/venv/bin/attnreg" list --json |
        "$python" -c 'import json, sys; print(*sorted(v["name"] for v in json.load(sys.stdin)["variants"]))'
}
expect() {
    local got
    got=$(listed)
    if [ "$got" != "$1" ]; then
        echo "expected the variants '$1', but attnreg lists '$got'" >&2
        exit 1
    fi
}
"$python" -m pip uninstall --quiet --yes "${ours[@]:1}"
expect ""
(cd "$checkout" && "${install[@]}" ./plugins/linear)
expect "linear"
"$python" -m pip uninstall --quiet --yes attnreg-linear
expect ""

echo "== the clean room is clean"
