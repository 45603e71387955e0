"""Names of test files lead from a module to its tests."""

from pathlib import Path

import decoct

SOURCE = Path(decoct.__file__).parent
TESTS = Path(__file__).parent


def test_a_test_file_has_the_name_of_what_it_tests():
    """`tests/ROOM/test_NAME*.py` is about `NAME`, a module or folder in `src/decoct/ROOM`."""
    rooms = [folder for folder in SOURCE.iterdir() if (TESTS / folder.name).is_dir()]
    astray = []
    for room in rooms:
        modules = {path.stem for path in room.rglob("*") if path.stem[0] != "_"}
        for path in (TESTS / room.name).glob("test_*.py"):
            name = path.stem.removeprefix("test_")
            if not any(f"{name}_".startswith(f"{module}_") for module in modules):
                astray.append(str(path))
    assert rooms
    assert not astray, f"no module has the name of {', '.join(astray)}"
