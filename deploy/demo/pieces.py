"""A table of pieces of text, and texts as lists of their indices: first all characters, then the most
frequent pairs of adjacent pieces (byte pair encoding).

    table, tokens = learn(text, 512)
    tokens = Pieces(table).encode("A task ")
    text = "".join(table[token] for token in tokens)

No piece contains the end of a paragraph, a space after other text, or more than one word.
"""

import numpy as np

END = "\n"


def learn(text, size):
    """The table, as a list of pieces whose first one is END, and the text's tokens."""
    characters = sorted(set(text) - {END})
    table = [END] + characters
    index = {character: i for i, character in enumerate(table)}
    tokens = np.array([index[character] for character in text], np.int64)
    while len(table) < size:
        pairs = tokens[:-1] * size + tokens[1:]
        counts = np.bincount(pairs, minlength=size * size)
        for i, left in enumerate(table):
            for_left = counts[i * size:(i + 1) * size]
            if left == END:
                for_left[:] = 0
        for j, right in enumerate(table):
            if right[0] in (END, " "):
                counts[j::size] = 0
        pair = int(counts.argmax())
        if counts[pair] < 2:
            break
        tokens = merge(tokens, pair // size, pair % size, len(table))
        table.append(table[pair // size] + table[pair % size])
    return table, tokens


def merge(tokens, left, right, merged):
    """Replaces each pair from left to right."""
    at = np.flatnonzero((tokens[:-1] == left) & (tokens[1:] == right))
    if left == right:  # Pairs may overlap: every second one of a run.
        kept, last = [], -2
        for position in at:
            if position > last + 1:
                kept.append(position)
                last = position
        at = np.array(kept, np.int64)
    tokens = tokens.copy()
    tokens[at] = merged
    return np.delete(tokens, at + 1)


class Pieces:
    """Encodes with the longest piece at each position."""

    def __init__(self, table):
        self.index = {piece: i for i, piece in enumerate(table)}
        self.longest = max(len(piece) for piece in table)

    def encode(self, text):
        """ValueError: a character is not in the table."""
        tokens, at = [], 0
        while at < len(text):
            for length in range(min(self.longest, len(text) - at), 0, -1):
                token = self.index.get(text[at:at + length])
                if token is not None:
                    break
            else:
                raise ValueError("no piece of the table has the character {!r}. Fix: use a prompt with "
                                 "other characters".format(text[at]))
            tokens.append(token)
            at += length
        return tokens
