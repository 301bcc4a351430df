from __future__ import annotations

from pathlib import Path

from magent2.models.schemas import schema_files, write_schemas

SCHEMAS = Path(__file__).parents[3] / "docs" / "schemas"


def test_the_published_schemas_are_those_of_the_models() -> None:
    published = {path.name: path.read_text() for path in SCHEMAS.glob("*.json")}

    assert published == schema_files(), "out of date: run `make schemas`"


def test_writing_the_schemas_makes_the_folder(tmp_path: Path) -> None:
    write_schemas(tmp_path / "new")

    assert {path.name for path in (tmp_path / "new").iterdir()} == set(schema_files())
