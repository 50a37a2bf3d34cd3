"""Which substrate should run a rollout: by whose code it is, and by what each substrate was measured to cost."""
