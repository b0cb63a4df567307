"""Writes crates/data/src/imagenet/classes.tsv: the WordNet ids and names of ImageNet's 1000 classes, in the order of their ids.

    apt-get install wordnet-base; pip install timm
    python3 peers/imagenet/classes.py > crates/data/src/imagenet/classes.tsv

The ids are those of timm's list, the names the first words of WordNet 3.0 (of which an id is a place in the file); a name that two
classes share has that of the class above in parentheses.
"""

import argparse
import collections
import pathlib

import timm


def synsets(path):
    """By id: the first word, and the id of the class above."""
    found = {}
    for line in path.open():
        if line.startswith("  "):
            continue
        fields = line.split(" | ")[0].split()
        words = int(fields[3], 16)
        pointers = fields[4 + 2 * words + 1 :]
        above = [pointers[i + 1] for i in range(0, len(pointers), 4) if pointers[i] in ("@", "@i")]
        found["n" + fields[0]] = (fields[4].replace("_", " "), "n" + above[0] if above else None)
    return found


def notice(path):
    """The licence in the head of WordNet's files."""
    numbered = [line.split(maxsplit=1) for line in path.open() if line.startswith("  ")]
    return [words[1].strip() if len(words) > 1 else "" for words in numbered]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wordnet", type=pathlib.Path, default=pathlib.Path("/usr/share/wordnet/data.noun"))
    arguments = parser.parse_args()
    known = synsets(arguments.wordnet)
    ids = (pathlib.Path(timm.__file__).parent / "data/_info/imagenet_synsets.txt").read_text().split()
    assert len(ids) == 1000 and ids == sorted(ids)
    times = collections.Counter(known[id][0] for id in ids)
    print("# WordNet ids and names of ImageNet's classes, written by peers/imagenet/classes.py. The names are words of WordNet:")
    for line in notice(arguments.wordnet):
        print(f"# {line}".rstrip())
    for id in ids:
        name, above = known[id]
        print(f"{id}\t{name} ({known[above][0]})" if times[name] > 1 else f"{id}\t{name}")


main()
