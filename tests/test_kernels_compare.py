"""kernels/compare.py as a student runs it: claims, both languages, an edited kernel, and no compiler."""

import json
import os
import shutil

import numpy as np
import pytest
from rich.cells import cell_len

import attention
import launcher
from conftest import ROOT, run_script

SCRIPT = ROOT / "kernels" / "compare.py"
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="no C++ compiler here"
)


@needs_compiler
def test_every_claim_holds_and_both_languages_show_the_same_numbers():
    runs = [json.loads(run_script(SCRIPT, "--json", "--check", "--lang", lang).stdout) for lang in ("en", "zh")]
    tables = [[table["rows"] for demo in run["demos"] for table in demo["tables"]] for run in runs]
    numbers = [[[[x for x in row if not isinstance(x, str)] for row in rows] for rows in one] for one in tables]
    assert numbers[0] == numbers[1] and tables[0] != tables[1]
    claims = [[(claim["holds"], claim["kind"]) for demo in run["demos"] for claim in demo["claims"]] for run in runs]
    assert claims[0] == claims[1] and len(claims[0]) >= 4 and all(holds for holds, _kind in claims[0])


@needs_compiler
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_first_look_fits_the_screen(lang):
    text = run_script(SCRIPT, "--lang", lang).stdout
    assert max(cell_len(line) for line in text.split("\n")) <= 80
    first, second = text.strip().split("\n\nDemo 2." if lang == "en" else "\n\n演示 2.")
    assert max(len(look.split("\n")) for look in (first, second)) <= 22


@pytest.fixture
def kernel_edited(tmp_path):
    """Run the script on a copy of the lab with one text of flash_forward.cu replaced."""

    def run(old, new, *arguments):
        for name in ("lecture01", "prereq3", "flash_lab", "kernels"):
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        source = tmp_path / "kernels" / "flash_forward.cu"
        text = source.read_text(encoding="utf-8")
        assert old in text
        source.write_text(text.replace(old, new), encoding="utf-8")
        return text[: text.index(old)].count("\n") + 1, run_script(
            tmp_path / "kernels" / "compare.py", *arguments, LAB_CACHE=str(tmp_path / "cache")
        )

    return run


@needs_compiler
def test_a_dropped_alpha_is_seen_by_the_claim(kernel_edited):
    _line, process = kernel_edited("o[r][c] = alpha * o[r][c]", "o[r][c] = o[r][c]", "--demo", "1", "--check")
    assert process.returncode == 1 and "✗" in process.stdout


@needs_compiler
def test_a_barrier_more_is_seen_by_the_claim(kernel_edited):
    _line, process = kernel_edited("__syncthreads();  // no", "__syncthreads(); __syncthreads();  // no", "--check")
    assert process.returncode == 1 and process.stdout.count("✗") == 1


@needs_compiler
@pytest.mark.parametrize("n_q, n_k", [(1, 1), (33, 7), (7, 70), (70, 7), (64, 64)])
def test_shuffles_and_barriers_are_those_of_the_formulas(n_q, n_k):
    rng, place = np.random.default_rng(0), launcher.Cpu()
    Q, K, V = (rng.standard_normal((heads, n, 32), np.float32) for heads, n in ((4, n_q), (2, n_k), (2, n_k)))

    def counted(result):
        return tuple(sum(int(getattr(one, kind).sum()) for one in result.stats) for kind in ("shuffles", "barriers"))

    for causal in (False, True):
        run = attention.flash_forward(Q, K, V, place=place, block_q=16, block_k=32, causal=causal)
        assert counted(run) == attention.forward_counts(4, n_q, n_k, 16, 32, causal)
    assert counted(attention.naive_attention(Q, K, V, place=place, block_q=8)) == attention.naive_counts(4, n_q)
    for splits in (1, 3, 100):
        run = attention.flash_decode(Q[:, :1].copy(), K, V, place=place, splits=splits, block_k=8)
        assert counted(run) == attention.decode_counts(4, n_k, splits, 8)


@needs_compiler
def test_a_slip_of_syntax_is_named_with_its_line(kernel_edited):
    line, process = kernel_edited("const float alpha =", "const floot alpha =", "--demo", "1")
    assert process.returncode == 2 and f"flash_forward.cu, line {line}" in process.stderr
    assert process.stderr.count("\n") == 1


@needs_compiler
@pytest.mark.parametrize("block_q", [6, 4096])
def test_blocks_that_cannot_be_launched_get_one_sentence(block_q):
    process = run_script(SCRIPT, "--demo", "1", "--block-q", block_q)
    assert process.returncode == 2 and process.stderr.count("\n") == 1


def test_without_a_compiler_one_sentence_says_how_to_get_one(tmp_path):
    process = run_script(SCRIPT, "--demo", "1", PATH=str(tmp_path), LAB_CACHE=str(tmp_path / "cache"))
    assert process.returncode == 2 and process.stderr.count("\n") == 1 and "g++" in process.stderr
    assert os.listdir(tmp_path) in ([], ["cache"])
