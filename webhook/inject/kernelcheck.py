# Loads LMCache's native kernels and then the engine's, as the engine will, and
# leaves OK or FAIL with the cause as the container's termination message.
import ctypes
import glob
import importlib
import importlib.util
import os
import sys


def check():
    spec = importlib.util.find_spec("lmcache")  # located, not imported
    if spec is None or not spec.submodule_search_locations:
        return "the image has no lmcache package"
    native = []
    for folder in spec.submodule_search_locations:
        native += sorted(glob.glob(os.path.join(folder, "**", "c_ops*.so"), recursive=True))
    if not native:
        return "lmcache has no native kernels (c_ops*.so)"
    importlib.import_module("torch")  # its libraries are what kernels link to
    for library in native:
        ctypes.CDLL(library)
    try:
        importlib.import_module("vllm._C_stable_libtorch")
    except ModuleNotFoundError:
        importlib.import_module("vllm._C")
    return ""


try:
    cause = check()
except BaseException as problem:
    cause = "%s: %s" % (type(problem).__name__, problem)
message = "FAIL: " + cause if cause else "OK"
print(message)
with open("/dev/termination-log", "w") as log:
    log.write(message[:2000])
sys.exit(1 if cause and os.environ.get("KERNEL_CHECK_STRICT") == "1" else 0)
