# the main job
