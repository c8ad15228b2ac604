# Imitates the games of a world, like generator_game.py, and learns for longer.

include('config/networks/generator_game.py')

max_iters = 1000            # for worlds with complicated answers, such as mastermind
