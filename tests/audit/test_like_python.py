"""`aerogel run` does what `python` does. Each test runs both and compares status, stdout and stderr byte for byte."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from .conftest import SOURCE, Runner, end, start

IDENTITY = """
import os, pickle, sys, __main__
import jax
class Thing: pass
f = jax.jit(lambda x: x + 1)
print(sys.argv, __name__, __file__, __package__, sys.path, os.getcwd(), sys.modules["__main__"] is __main__)
print(__spec__ and __spec__.name, type(__loader__).__name__, sorted(vars(__main__)))
print(type(pickle.loads(pickle.dumps(Thing()))) is Thing, Thing.__module__)
print(sys.flags, sys.warnoptions, sys._xoptions, sys.orig_argv[1:], __debug__)
print([name for name in os.environ if "AEROGEL_RUN" in name], os.environ["PYTHONPATH"], "sitecustomize" in sys.modules)
print([type(finder).__name__ for finder in sys.meta_path], type(jax.__spec__), type(jax.__loader__))
print(f(1))
"""


def test_a_script_sees_what_it_would_see(runner: Runner) -> None:
    """Arguments, `__main__`, the path, the environment, flags and pickling are python's."""
    runner.write("script.py", IDENTITY)
    seen = runner.both("script.py", "a", "--quiet", "--report", "x", flags=["-O", "-X", "dev", "-W", "ignore"])
    assert seen.status == 0
    assert "['script.py', 'a', '--quiet', '--report', 'x'] __main__" in seen.out
    assert "[] " in seen.out.splitlines()[4]


def test_flags_of_the_module_form(runner: Runner) -> None:
    """`python -Om aerogel run` and `python -O -m aerogel run` are the command with a flag."""
    script = runner.write("script.py", "import sys; print(sys.flags.optimize, sys.argv)")
    for words in (["-O", "-m", "aerogel"], ["-Om", "aerogel"], ["-O", "-maerogel"]):
        assert end(start([sys.executable, *words, "run", "--quiet", script, "-m"], runner.folder)).out == (
            "1 ['script.py', '-m']\n"
        )


def test_a_module_sees_what_it_would_see(runner: Runner) -> None:
    """`-m` sets `__spec__` and the first path entry as python does, submodules included."""
    (runner.folder / "package").mkdir()
    runner.write("package/__init__.py", "")
    runner.write("package/inner.py", IDENTITY)
    assert runner.both("-m", "package.inner", "-m", "b").status == 0


def test_standard_input_folders_zips_and_code(runner: Runner) -> None:
    """Everything that python takes for a program is one."""
    runner.write("__main__.py", IDENTITY)
    with zipfile.ZipFile(runner.folder / "program.zip", "w") as archive:
        archive.write(runner.folder / "__main__.py", "__main__.py")
    assert runner.both("-", "x", stdin="import sys, jax; print(sys.argv, jax.jit(abs)(-1))").out == "['-', 'x'] 1\n"
    assert runner.both(".", "x").status == 0
    assert runner.both("program.zip").status == 0
    assert runner.both("-c", "import sys; print(sys.argv, input())", "y", stdin="typed\n").out == "['-c', 'y'] typed\n"


ENDINGS = {
    "integer": ("sys.exit(3)", 3),
    "text": ("sys.exit('text')", 1),
    "nothing": ("sys.exit()", 0),
    "error": ("raise KeyError('x')", 1),
    "hard": ("print('lost?', flush=True); os._exit(5)", 5),
    "interrupt": ("raise KeyboardInterrupt", -signal.SIGINT),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_endings(runner: Runner, name: str) -> None:
    """Exit status, the text on stderr, and exit handlers in their order."""
    statement, status = ENDINGS[name]
    runner.write(
        "script.py",
        f"""
import atexit, os, sys
atexit.register(print, "registered first")
import jax
atexit.register(print, "registered last")
def main():
    jax.jit(lambda x: x + 1)(1.0)
    {statement}
main()
""",
    )
    assert runner.both("script.py").status == status


def test_programs_that_do_not_start(runner: Runner) -> None:
    """A missing file or module and a syntax error read as python's."""
    runner.write("wrong.py", "import jax\ndef f(:\n")
    runner.write("importing.py", "import wrong")
    assert runner.both("missing.py").status == 2
    assert runner.both("-m", "missing").status == 1
    assert runner.both("wrong.py").status == 1
    assert runner.both("importing.py").status == 1


TRACED_ERRORS = [
    "f(jnp.ones(3), jnp.ones(7))",
    "g(jnp.ones(()))",
    "f(1)",
    "jax.jit(lambda x: jax.vmap(h)(x))(jnp.ones(3))",
    "jax.grad(jax.jit(h))(1.0)",
    "jax.jit(3)",
    "jax.jit()",
    "jax.jit(abs, static=3)",
    "jax.jit(static=3)",
    "jax.jit(generator)",
    "jax.jit(lambda x: 'text')(1)",
    "jax.jit(h)('text')",
    "jax.jit(abs, backend='cpu')(-1)",
    "jax.jit(lambda x: jax.pure_callback(h, x, x))(1.0)",
]


def test_tracebacks(runner: Runner) -> None:
    """Errors in traced code show the user's lines and JAX's words, and no frame of Aerogel. So do JAX's warnings."""
    tries = "".join(f"try:\n    {line}\nexcept Exception:\n    traceback.print_exc()\n" for line in TRACED_ERRORS)
    script = runner.write(
        "script.py",
        f"""
import traceback, jax, jax.numpy as jnp
@jax.jit
def f(x, y):
    return x @ y
@jax.jit
def g(x):
    return 1 if x else 2
def h(x):
    raise ValueError("the user's own")
def generator():
    yield 1
{tries}
h(1)
""",
    )
    wanted = runner.python(script)
    assert wanted.err.count("Traceback") > len(TRACED_ERRORS) - 1
    assert "DeprecationWarning" in wanted.err
    for options in ([], ["--compare"]):
        assert runner.aerogel("--quiet", *options, script).err == wanted.err


def test_an_import_of_jax_that_fails(runner: Runner) -> None:
    """The traceback of a broken `jax` is python's; so is that of none."""
    runner.write("jax.py", "import nothing_of_that_name")
    runner.write("script.py", "import jax")
    assert "nothing_of_that_name" in runner.both("script.py").err


def test_a_script_without_jax(runner: Runner) -> None:
    """A folder's own modules win over the standard library, and nothing is imported for the script."""
    runner.write("json.py", "print('own json')")
    runner.write("script.py", "import sys, json; print('numpy' in sys.modules, 'jax' in sys.modules)")
    assert runner.both("script.py").out == "own json\nFalse False\n"
    # Aerogel says and writes that nothing was compiled, without importing JAX for it.
    loud = runner.aerogel("--report", "run.json", "script.py")
    assert (loud.out, loud.err) == ("own json\nFalse False\n", "\naerogel: nothing was compiled with jax.jit\n")
    assert json.loads((runner.folder / "run.json").read_text())["functions"] == []
    runner.write("forks.py", "import os, sys\nif os.fork(): os.wait()\nelse: sys.exit()")
    assert runner.aerogel("forks.py").err.count("nothing was compiled") == 1


def test_an_environments_own_sitecustomize_runs(runner: Runner) -> None:
    """It is imported once, as itself."""
    (runner.folder / "site").mkdir()
    runner.write("site/sitecustomize.py", "print('own', __file__, __name__)")
    runner.write("script.py", "import sys; print(sys.modules['sitecustomize'].__file__)")
    for words in ([], [runner.command, "run", "--quiet"]):
        command = [sys.executable, *words, "script.py"]
        path = f"{runner.folder / 'site'}:{SOURCE}"
        done = subprocess.run(
            command, cwd=runner.folder, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
        )
        own = str(runner.folder / "site" / "sitecustomize.py")
        # The command's own interpreter runs it too, before the script's does.
        assert done.stdout.splitlines()[-2:] == [f"own {own} sitecustomize", own]
        assert done.stderr == ""


def wait_until_asleep(process: int) -> None:
    """Returns when the first thread of a process was found asleep ten times running, however slow the machine is."""
    state, found = Path(f"/proc/{process}/stat"), 0
    while found < 10:
        time.sleep(0.1)
        # Running, or stopped by whoever measures on this machine, is not asleep; without /proc there is time alone.
        asleep = not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "S"
        found = found + 1 if asleep else 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals(runner: Runner, number: signal.Signals) -> None:
    """The process is the script's: it dies of a signal as python does, and Ctrl-C is a KeyboardInterrupt."""
    script = runner.write("script.py", "import jax, time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    ends = []
    for words in ([], [runner.command, "run", "--quiet"]):
        # Shells start background jobs with SIGINT ignored, and processes inherit that; they do not inherit handlers.
        before = signal.signal(number, signal.default_int_handler)
        try:
            process = start([sys.executable, *words, script], runner.folder)
        finally:
            signal.signal(number, before)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        wait_until_asleep(process.pid)
        process.send_signal(number)
        ends.append(end(process))
    assert ends[0] == ends[1]
    assert ends[0].status == -number


@pytest.mark.parametrize("redirected", [">&-", "2>&-", "> /dev/full", "| head -1"])
def test_streams_that_are_closed_or_full(runner: Runner, redirected: str) -> None:
    """Without a place to print to, a script runs as python runs it, and the table goes where it can or nowhere."""
    script = runner.write("script.py", "import jax\nfor k in range(20_000): print(k)\nprint(jax.jit(abs)(-1))\n")
    ends = []
    for words in ([], [runner.command, "run"]):
        command = f"{shlex.join([sys.executable, *words, script])} {redirected}; echo ${{PIPESTATUS[0]}}"
        ends.append(end(start(["bash", "-c", command], runner.folder)))
    assert (ends[1].status, ends[1].out) == (ends[0].status, ends[0].out)


def test_children(runner: Runner) -> None:
    """Processes that a script starts by spawning or forking work, and write no report of their own."""
    script = runner.write(
        "script.py",
        """
import multiprocessing, os, sys
if __name__ != "__main__":
    print("child imports", __name__, flush=True)
import jax
square = jax.jit(lambda x: x * x)
def work(x):
    return float(square(x)) + 1
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [1.0, 2.0]))
    if os.fork() == 0:
        sys.exit(0)
    os.wait()
    print(work(3.0))
""",
    )
    assert "[2.0, 5.0]" in runner.both(script).out
    loud = runner.aerogel(script)
    assert loud.err.count("aerogel:") == 1


def test_flags_that_shut_aerogel_out_are_an_error(runner: Runner) -> None:
    """Python's -E and -I would run the script without Aerogel, in silence."""
    runner.write("script.py", "print(1)")
    for flag in ("-E", "-S"):
        code = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); sys.path += {sys.path!r}\n"
        code += "from aerogel.cli import main; main(['run', 'script.py'])"
        done = subprocess.run([sys.executable, flag, "-c", code], cwd=runner.folder, capture_output=True, text=True)
        assert done.returncode == 2
        assert f"python's {flag} keeps aerogel out" in done.stderr


def test_an_unset_path_stays_unset(runner: Runner) -> None:
    """Aerogel is found where the command found it, and PYTHONPATH is set neither for the script nor its children."""
    script = runner.write("script.py", "import os, jax; print(os.environ.get('PYTHONPATH'), jax.jit(abs)(-1))")
    code = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from aerogel.cli import main; main()"
    Path(runner.command).write_text(code)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, runner.command, "run", script]
    done = subprocess.run(command, cwd=runner.folder, env=env, capture_output=True, text=True)
    assert done.stdout == "None 1\n"
    assert "0 of 1 compiled function rewritten" in done.stderr
