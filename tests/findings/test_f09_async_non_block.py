"""F9: vLLM 0.11.0 asks verl's executor not to block, which it does not know: asynchronous rollouts die at once."""

STACKS = ("installed", "performance")


def executed(patched):
    """What vLLM's `Executor.execute_model` gets from verl's executor with a worker behind a socket; or the error."""
    import os
    import pickle
    import threading
    from concurrent.futures import Future
    from types import SimpleNamespace

    import zmq
    from verl.workers.rollout.vllm_rollout.vllm_async_server import ExternalZeroMQDistributedExecutor as Executor

    def serve(socket):
        while True:
            method, arguments, _ = pickle.loads(socket.recv())
            socket.send(pickle.dumps(f"{method} of {arguments[0]}" if method == "execute_model" else None))

    socket = zmq.Context().socket(zmq.REP)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    threading.Thread(target=serve, args=(socket,), daemon=True).start()
    os.environ["VERL_VLLM_ZMQ_ADDRESSES"] = f"tcp://127.0.0.1:{port}"
    if patched:
        call = Executor.collective_rpc

        def collective_rpc(executor, *arguments, non_block=False, **named):
            """Stands for the patch verl/async-non-block."""
            results = call(executor, *arguments, **named)
            if not non_block:
                return results
            futures = [Future() for _ in results]
            for future, result in zip(futures, results, strict=True):
                future.set_result(result)
            return futures

        Executor.collective_rpc = collective_rpc
    parallel = SimpleNamespace(data_parallel_rank_local=0, tensor_parallel_size=1)
    executor = Executor.__new__(Executor)
    executor.vllm_config = SimpleNamespace(parallel_config=parallel)
    executor._init_executor()
    try:
        return executor.execute_model("step 1", non_block=True).result(timeout=10)
    except TypeError as error:
        return str(error)


def test_the_executor_refuses(on):
    assert "unexpected keyword argument 'non_block'" in on(executed, False)


def test_with_futures_it_answers(on):
    assert on(executed, True) == "execute_model of step 1"
