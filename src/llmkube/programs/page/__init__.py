"""The page of the front door: memory, models, a chat and logs in a browser.

```
 sources ─▶ state (pure) ─▶ feed ─▶ server-sent events ─▶ static/*.js
                                     actions, logs ◀───── with the page's token
```

handler     requests of the page: who may send them, files, actions, logs
feed        the state of all that the page shows, sent to each viewer as it changes
requests    the last requests, with the parts of their time
state       that state from the objects and the memory of the host; pure
tail        the last lines of a log file, and what is appended
static      the page itself: HTML, CSS and ES modules, without a build step
"""
