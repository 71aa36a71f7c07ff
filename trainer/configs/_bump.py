# The learning rate of stages 4 to 7: from min_lr up to max_lr over the warmup, then down to lr.

lr_schedule = "1cycle"
anneal_strategy = "cos"
cooldown_steps = 400
min_lr = 1.6e-5
max_lr = 6.4e-4
