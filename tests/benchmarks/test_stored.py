"""Results are written where the README looks for them."""

from __future__ import annotations

import json

PAGE = "before\n<!-- speed:begin -->\nold\n<!-- speed:end -->\nafter\n"


def test_a_result_is_stored_three_times(program, tmp_path, monkeypatch):
    stored = program("stored")
    monkeypatch.setattr(stored, "ROOT", tmp_path)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "README.md").write_text(PAGE, encoding="utf-8")
    shown = stored.table(["a", "b"], [[1, "x"], [2.5, ""]])
    assert shown == "| a | b |\n|---|---|\n| 1 | x |\n| 2.5 |  |"
    stored.store("speed", {"values": [1, 2]}, title="Speed", about="As fast as it is.", shown=shown, notes="- more")
    record = json.loads((tmp_path / "benchmarks/results/speed.json").read_text(encoding="utf-8"))
    assert record["values"] == [1, 2]
    assert record["machine"]["cores"] >= 1
    page = (tmp_path / "benchmarks/results/speed.md").read_text(encoding="utf-8")
    assert page.startswith(f"# Speed, {record['date']}\n\nAs fast as it is. Machine: ")
    assert page.endswith(f"{shown}\n\n- more\n")
    readme = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert readme == f"before\n<!-- speed:begin -->\n{shown}\n<!-- speed:end -->\nafter\n"


def test_a_page_without_marks_stays_as_it_is(program, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(PAGE, encoding="utf-8")
    program("stored").put_in_readme("size", "new", readme)
    assert readme.read_text(encoding="utf-8") == PAGE
