#!/bin/bash
# Run the image tests on emulated aarch64: arm.sh PYTEST_ARGUMENTS... On Debian, without root, with
#   apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static
# Debian's Python for arm64 and PyPI's wheels are downloaded to build/arm once (1 GB).
set -euo pipefail
cd "$(dirname "$0")/../.."
ROOT=$PWD/build/arm
HOST=${PYTHON:-python3}

if [ ! -e "$ROOT/ready" ]; then
    APT=$ROOT/apt
    mkdir -p "$APT/lists/partial" "$APT/archives/partial"
    apt() {
        apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Debug::NoLocking=1 \
            -o APT::Sandbox::User= -o Dir::State="$APT" -o Dir::State::status=/dev/null \
            -o Dir::Cache="$APT" "$@"
    }
    apt update
    apt install -y --download-only --no-install-recommends python3 libstdc++6 libgomp1
    for archive in "$APT"/archives/*.deb; do dpkg-deb -x "$archive" "$ROOT"; done
    version=$(ls "$ROOT/usr/bin" | sed -n 's/^python\(3\.[0-9]*\)$/\1/p')
    platforms=$(printf -- '--platform manylinux%s_aarch64 ' 2014 _2_17 _2_26 _2_27 _2_28)
    "$HOST" -m pip install -q --upgrade --target "$ROOT/packages" --no-deps --only-binary :all: \
        --implementation cp --python-version "$version" $platforms \
        torch==2.9.1 torchvision==0.24.1 filelock fsspec mpmath networkx sympy typing_extensions \
        numpy pillow simplejpeg isal psutil xxhash msgspec jinja2 markupsafe rich markdown-it-py mdurl \
        pygments typer click shellingham annotated-doc pytest pytest-timeout pluggy iniconfig \
        packaging hypothesis sortedcontainers lmdb
    touch "$ROOT/ready"
fi

# One binary serves all versions of Python, so this interpreter's headers will do. Debian's
# pyconfig.h includes that of the target; 64-bit Linux is alike.
read -r headers config < <("$HOST" -c '
import sysconfig
print(sysconfig.get_path("include"), sysconfig.get_config_h_filename())')
rm -rf "$ROOT/include" "$ROOT/built" && cp -rL "$headers" "$ROOT/include"
cp "$config" "$ROOT/include/pyconfig.h"
CC="aarch64-linux-gnu-gcc -I$ROOT/include" LDSHARED="aarch64-linux-gnu-gcc -shared" \
    "$HOST" setup.py -q build --build-base "$ROOT/build" --build-lib "$ROOT/built"

# Tests start processes with sys.executable, so that is a script that starts the emulator.
cat > "$ROOT/python" <<END
#!/bin/sh
exec qemu-aarch64-static -0 "$ROOT/python" -L "$ROOT" "$(ls "$ROOT"/usr/bin/python3.*[0-9])" "\$@"
END
chmod +x "$ROOT/python"
export PYTHONHOME=$ROOT/usr PYTHONPATH=$ROOT/built:$ROOT/packages PYTHONDONTWRITEBYTECODE=1
"$ROOT/python" -c 'from feedline.images import _jpeg, _lut, _photometric, _png, _resample
assert _resample.PATHS == ("scalar", "neon"), _resample.PATHS'
# Without conftest.py, whose fork server would have to be emulated too.
"$ROOT/python" -m pytest --noconftest --hypothesis-profile=ci --timeout=1800 "$@"
