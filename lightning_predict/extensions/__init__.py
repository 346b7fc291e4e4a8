"""Parts of the package beyond the core: each is loaded on first use.

`parallel` shares a model over GPUs (tensor, pipeline, context and expert parallelism) and searches layouts.
`embeddings` shards the embedding tables of recommendation models. `advice` predicts the gain of changes. `planning`
schedules jobs on machines to rent. `regression` predicts from past runs. `own_weights` measures a GPU and fits weights.
"""
