"""Runs every command and code block of the guide in order."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "say_i_dont_know.md"
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def environment():
    """Environment variables with the commands of this Python, on one thread."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}


def run(command, folder):
    options = {"cwd": folder, "env": environment(), "capture_output": True, "text": True}
    result = subprocess.run(command, **options, timeout=250, check=False)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
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


@pytest.mark.timeout(600)
def test_every_command_of_the_guide(tmp_path):
    outputs, servers = {}, []
    try:
        for language, text in BLOCK.findall(GUIDE.read_text("utf-8")):
            if language == "python":
                outputs[text] = run([sys.executable, "-c", text], tmp_path)
                continue
            for line in text.strip().splitlines():
                words = line.split()
                if words[:2] == ["daedl", "serve"]:
                    servers.append(
                        subprocess.Popen(words, cwd=tmp_path, env=environment(), text=True)
                    )
                    wait_for(int(words[-1]), servers[-1])
                elif words[0] != "curl" or shutil.which("curl"):
                    outputs[line] = run(["bash", "-c", line], tmp_path)
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
