"""Runs every command and code block of the guide in order."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from typer.testing import CliRunner

from daedl.cli import app

GUIDE = Path(__file__).parents[2] / "docs" / "say_i_dont_know.md"
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run(language, text):
    """What a block of Python or a line of a shell writes; commands of daedl run in this process."""
    program, *arguments = text.split()
    if language == "python":
        with redirect_stdout(StringIO()) as output:
            exec(compile(text, GUIDE, "exec"), {"__name__": "__main__"})
        return output.getvalue()
    if program == "daedl":
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, f"{text}\n{result.output}"
        return result.stdout
    result = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{text}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def wait_for(port, server):
    for _ in range(600):
        assert server.poll() is None, server.communicate()
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"no server at port {port}")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_command_of_the_guide(tmp_path, monkeypatch):
    outputs, servers = {}, []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAEDL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    try:
        for language, text in BLOCK.findall(GUIDE.read_text("utf-8")):
            for part in [text] if language == "python" else text.strip().splitlines():
                words = part.split()
                if words[:2] == ["daedl", "serve"]:
                    servers.append(subprocess.Popen(words, text=True))
                    wait_for(int(words[-1]), servers[-1])
                elif words[0] != "curl" or shutil.which("curl"):
                    outputs[part] = run(language, part)
    finally:
        for server in servers:
            server.terminate()
            server.wait(30)

    def output(part):
        return next(text for line, text in outputs.items() if part in line)

    assert "unlike the training data" in output("daedl predict photos.daedl photos/other")
    assert output("p.accept[0].item()").split()[1] in ("True", "False")
    assert "second batch" in output("model.revisions")
    for name in ("photos.daedl.risk.png", "flowers.csv", "photos.onnx", "photos-2.daedl"):
        assert (tmp_path / name).stat().st_size > 0
    if shutil.which("curl"):
        assert '"accept"' in output("8765/predict")
        assert "density" in output("8765/metrics")
    assert len(outputs) >= 9


def test_every_guide_is_linked_from_the_readme():
    readme = (GUIDE.parents[1] / "README.md").read_text("utf-8")
    for path in GUIDE.parent.glob("*.md"):
        assert f"docs/{path.name}" in readme, path.name
