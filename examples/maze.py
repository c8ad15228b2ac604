"""A maze in the dark: the policy moves north, east, south or west, and the world says after each move
whether it has made a step (.), has hit a wall (#), or has found the exit (!). It sees nothing else:
all prompts look alike. Texts to imitate are random walks.

    python train_grpo.py config/grpo_pairs.py --dataset=examples/maze.py"""
import random

SIZE = 4
N_MOVES = 16
STEP = {'n': -SIZE - 1, 'e': 1, 's': SIZE + 1, 'w': -1}         # in a maze, which is one text


def place_of(completion, maze):
    """Return where the moves of a completion lead, as an index of the maze."""
    place = maze.index('A')
    for move in completion[::2]:                # the world has said what is between them
        ahead = place + STEP.get(move, 0)
        place = place if maze[ahead] == '#' else ahead
    return place


def reply(completion, maze):
    place = place_of(completion, maze)
    if maze[place] == 'B':
        return '!', True
    return '#' if place == place_of(completion[:-1], maze) else '.'


def verify(completion, maze):
    return float(maze[place_of(completion, maze)] == 'B')


def texts():
    """Return 10,000 mazes and 256 that are held out, each with a random walk. All have a way out."""
    rng = random.Random(1)
    records = {}
    while len(records) < 10_256:
        cells = ['A', *rng.choices('..#', k=SIZE * SIZE - 2), 'B']
        border = '#' * (SIZE + 1)
        rows = [''.join(cells[i:i + SIZE]) + '#' for i in range(0, SIZE * SIZE, SIZE)]
        maze = border + ''.join(rows) + border
        walk = ''
        for _ in range(300):
            walk += rng.choice('nesw')
            walk += reply(walk, maze)[0]
            if walk.endswith('!'):
                records[maze] = {'prompt': ':', 'answer': walk[:2 * N_MOVES], 'maze': maze}
                break
    records = list(records.values())
    return records[256:], records[:256]
