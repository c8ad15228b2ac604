# imitates the games of a world, for longer than generator_game.py

include('config/networks/generator_game.py')

max_iters = 1000            # complicated answers need them (mastermind); for careless games 400 do
