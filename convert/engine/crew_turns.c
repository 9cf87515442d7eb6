/* Whose turn it is.
 *
 * Each lane takes its units in its plan's order. Among lanes that read the same source, the one that is furthest behind in it
 * has the next turn, so that all of them go through the source side by side, and what is read for one is there for the others.
 * A lane that waits for something of its own (an amax, a file to be committed) lets others go ahead.
 *
 * With other ranks the source is cut into zones, each of which one rank reads: it takes the units of all lanes there, and keeps what it
 * has read until the last lane is through. It stays with the lane that is furthest ahead until that has left the zone, so that another
 * rank can go on with it in the next one, and the lanes follow each other from zone to zone. As many ranks as there are lanes can be at
 * work in this way; with fewer lanes left, whoever is free takes what lies in a zone that nobody has yet. */
#include "convert/engine/engine_run.h"

bool tsr_crew_next_lane(const tsr_crew *c, tsr_lane **lane)
{
    const tsr_run *r = *lane == NULL ? c->runs : (*lane)->run;
    size_t k = *lane == NULL ? 0 : (size_t)(*lane - r->lanes) + 1;
    for (; r < c->runs + c->n_runs; r++, k = 0) {
        if (r->present && k < r->n_lanes) {
            *lane = &r->lanes[k];
            return true;
        }
    }
    return false;
}

/* The lane whose turn it is, of those that do not wait; NULL: none. */
static tsr_lane *furthest_behind(const tsr_crew *c)
{
    tsr_lane *found = NULL, *lane = NULL;
    uint64_t least = UINT64_MAX;
    while (tsr_crew_next_lane(c, &lane)) {
        if (lane->waiting)
            continue;
        const uint64_t place = c->shared == NULL ? 0 : tsr_lane_place(lane);
        if (found == NULL || place < least) {
            found = lane;
            least = place;
        }
    }
    return found;
}

/* ---- zones ---- */

/* Whether a lane has nothing left to take. */
static bool is_over(tsr_lane *lane)
{
    return lane->run->failure.status != TSR_OK || !tsr_lane_find_step(lane);
}

/* The lane of this rank's turn: in the first of its own zones the one that is furthest ahead, else the one that is furthest behind
 * in a zone of nobody's, which is this rank's from now on if there is a lane for each rank that works. NULL: none; *others: since
 * the rest is in zones of others. */
static tsr_lane *next_in_zones(tsr_crew *c, unsigned rank, bool *others)
{
    const unsigned ranks = tsr_ranks_count(c->ranks) - (c->workers == 0);
    tsr_lane *mine = NULL, *behind = NULL, *lane = NULL;
    unsigned lanes = 0;
    while (tsr_crew_next_lane(c, &lane)) {
        lanes += !is_over(lane);
        if (lane->waiting || is_over(lane))
            continue;
        const uint64_t place = tsr_lane_place(lane), zone = place / c->zone_bytes;
        if (c->owners[zone] == rank + 1) {
            const uint64_t best = mine == NULL ? UINT64_MAX : mine->place / c->zone_bytes;
            if (zone < best || (zone == best && place > mine->place))
                mine = lane;
        } else if (c->owners[zone] != 0) {
            *others = true;
        } else if (behind == NULL || place < behind->place) {
            behind = lane;
        }
    }
    if (mine == NULL && behind != NULL && lanes >= ranks)
        c->owners[behind->place / c->zone_bytes] = (uint16_t)(rank + 1);
    return mine != NULL ? mine : behind;
}

bool tsr_crew_take_work(tsr_crew *c, unsigned rank, tsr_work *w, bool wait)
{
    bool taken = false;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        bool waits = false;
        tsr_lane *lane = NULL;
        while (tsr_crew_next_lane(c, &lane))
            lane->waiting = false;
        while (!taken && (lane = c->owners != NULL ? next_in_zones(c, rank, &waits) : furthest_behind(c)) != NULL) {
            const tsr_turn turn = tsr_lane_take_unit(lane, w);
            taken = turn == TSR_TURN_TAKEN;
            lane->waiting = !taken;
            waits = waits || turn == TSR_TURN_WAITS;
        }
        if (taken && c->owners != NULL)
            pthread_cond_broadcast(
                &c->changed); /* the lane may have come to a zone that is another rank's, or nobody's */
        if (taken || !waits || !wait)
            break;
        pthread_cond_wait(&c->changed, &c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return taken;
}
