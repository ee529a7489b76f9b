"""World-model rewards: prediction, anchors, debiasing, fusion."""
