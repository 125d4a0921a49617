"""Facts about this machine, without judgement: CPU, memory and its limits. What they mean is planning's business."""
