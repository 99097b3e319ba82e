"""A small fault for each module that has a bench, which that bench must detect: the text in the
source, its replacement, and the parameters for which this is a fault (empty: all).
`rtl/scripts/bench --faults` plants them one by one, each in a copy."""

# (bench, parameters, source, what stands there, the fault)
FAULTS = [
    # The last part of an item is sent only if it is full.
    ("stream_narrow", {}, "stream_narrow",
     "if (keep_i[8*i+:8] != '0)", "if (keep_i[8*i+7])"),
    # Bytes of the previous item stay in a short one.
    ("stream_widen", {}, "stream_widen", "if (part_q == '0) keep_q <= '0;", ""),
    # A beat with too few or too many bytes is not reported as a wrong length.
    ("shaper", {}, "shaper", "is_wrong_o = is_short_strobe || !is_last_beat;",
     "is_wrong_o = !is_last_beat;"),
    # The longest key is too long.
    ("pre_processor", {}, "pre_processor", "meta_i.klen > 8'(KeyBytes)",
     "meta_i.klen >= 8'(KeyBytes)"),
    # A hash leaves before it is taken.
    ("hash_unit", {"Ring": 0}, "hash_lanes", "if (valid_o && ready_i) take_q",
     "if (valid_o) take_q"),
    # A key's last word enters before the place's hash was collected.
    ("hash_unit", {"Ring": 1}, "hash_ring", " && !(word_q.last && is_busy_q[place_q])", ""),
    # The next key's first beat enters while a rest leaves, even if it is that whole key.
    ("hash_unit", {"Ring": 1}, "hash_words", "is_flush_q ? ready_i && !beat_i.last",
     "is_flush_q ? ready_i"),
    # The next key begins at a line's first word.
    ("key_striper", {"KeyWord": 3}, "key_striper",
     "if (!is_terms_behind) word_q <= FirstWord;", ""),
    # Only a key's last line counts.
    ("compare_unit", {}, "compare_unit", "(is_head ? is_tagged[Place] : match_q[i])",
     "(!is_head || is_tagged[Place])"),
    # Takes an entry when it is full.
    ("fifo", {"Depth": 5}, "fifo", "assign ready_o = !is_full_q;",
     "assign ready_o = 1'b1;"),
    # Its output forgets to wait.
    ("fifo", {"InBlock": 1}, "fifo", "if (is_moved) data_o", "if (has_fetched_q) data_o"),
    # Lends more than is left.
    ("credits", {}, "credits", "left_q >= Width'(Step)", "left_q != '0"),
    # Compares only reads, as printed.
    ("concurrency_control", {"Writers": 5}, "concurrency_control", "((!is_busy ||",
     "((is_write || !is_busy ||"),
    # Retiring flips a counter the wrong way.
    ("concurrency_control", {"CounterBits": 2}, "concurrency_control", "? noted_q[oldest_q]",
     "? retired[tag_q[oldest_q]]"),
    # Asks without credit.
    ("read_unit", {}, "read_unit", "is_read && has_credit && is_sent_q", "is_read && is_sent_q"),
    # A free slot outranks a match.
    ("write_unit", {}, "write_unit", "target        = has_match ? matched",
     "target        = has_match && available == '0 ? matched"),
    # A longer value is stored in the place of a shorter one.
    ("write_unit", {}, "write_unit", " || beats_q > old_beats_q", ""),
    # A value counts as whole while the next one is stored over it.
    ("value_log", {}, "value_log", "PositionBits-1:LogBits] != '0",
     "PositionBits-1:LogBits+1] != '0"),
    # Every other bucket is swept.
    ("value_log", {}, "value_log", "sweep_bucket_o + 1'b1", "sweep_bucket_o + 2'd2"),
    # A sweep clears what has expired, although the clock may be set back.
    ("concurrency_control", {"Writers": 1}, "concurrency_control",
     "op_o.now               <= '0;", ""),
    # A sweep reads nothing.
    ("read_unit", {}, "read_unit", " || op_i.meta.kind == KindDelete", ""),
    # A key finds its item without the value.
    ("compare_unit", {}, "compare_unit", "match_q & ~is_overwritten_i[Slots-1:0]",
     "match_q"),
    # A sweep is answered.
    ("write_unit", {}, "write_unit", "finish && !is_sweep && (", "finish && ("),
    # A value counts as expired, but its slot may be free.
    ("compare_unit", {}, "compare_unit", "(is_overwritten_i[Slots-1:0] & ~free_q)",
     "is_overwritten_i[Slots-1:0]"),
    # A value does not go on at the log's beginning.
    ("value_store", {}, "value_store", "AddressWidth'(place)",
     "AddressWidth'(command_i.pointer[LogBits-1:0]) + AddressWidth'(beat_q)"),
    # Another client comes between the beats of a line.
    ("memory_arbiter", {}, "memory_arbiter", "write_valid_i || is_inside_line_q;",
     "write_valid_i;"),
    # A quiet GETK that misses is answered.
    ("post_processor", {}, "post_processor", "|| response.opcode == OpGetKQ)", ")"),
    # Buckets are taken for smaller than they are.
    ("table_clear", {"LineBeats": 4}, "table_clear", "AddressWidth'(BucketBeats)",
     "AddressWidth'(Lines)"),
    # A value that ends with its beat is read a beat too far.
    ("value_store", {}, "value_store", "22'(BeatWords) >= words", "22'(BeatWords) > words"),
    # A byte of what fills a short frame up is summed.
    ("frame_buffer", {}, "frame_buffer", "16'(i) < udp_left_q}", "16'(i) <= udp_left_q}"),
    # The carry of a lane's last word is lost.
    ("frame_buffer", {}, "frame_buffer", " + 18'(left[16])", ""),
    # A frame is kept for whose verdict there is no room.
    ("frame_buffer", {}, "frame_buffer", "frames_q != FramesWidth'(Frames)", "1'b1"),
    # A datagram so long that its packet's length begins again from 0 stops the parser for good.
    ("request_parser", {}, "request_parser", "17'(udp_bytes) + 17'd20",
     "{1'b0, udp_bytes + 16'd20}"),
    # A header that states a longer body than the datagram has is accepted.
    ("request_parser", {}, "request_parser", "17'(udp_bytes) == datagram_bytes_q",
     "17'(udp_bytes) <= datagram_bytes_q"),
    # The last full beat of a value has no bytes.
    ("response_formatter", {}, "response_formatter", "if (count_q < 5'd8)", "if (count_q <= 5'd8)"),
    # The copy of a key stays behind when its request ends without an answer.
    ("response_formatter", {}, "response_formatter", "(ended_i || (start && !is_repeated))",
     "(start && !is_repeated)"),
    # A CAS id is ignored where it is short.
    ("request_parser", {}, "request_parser", "{word[8], word[9], word[10], word[11]} != '0",
     "{word[8], word[9], word[10]} != '0"),
    # The broadcast address is taken for a client's.
    ("request_parser", {}, "request_parser", "from_ip[31:29] == 3'b111",
     "from_ip[31:28] == 4'b1110"),
    # What compares an id is written without.
    ("pre_processor", {}, "pre_processor", "classified.status = StatusNotSupported;",
     "classified.kind   = KindSet;"),
    # A frame is lost in the middle.
    ("frame_spreader", {}, "frame_spreader", "count_q == '0 ? is_full : is_lost_q", "is_full"),
    # A request enters only its table's queue when the queue of all answers is full.
    ("sequencer", {}, "sequencer", "(has_order_room && has_pick_room[target])",
     "has_pick_room[target]"),
    # The next request begins before the previous request's value has passed.
    ("lane_arbiter", {}, "lane_arbiter", "!has_key_q && !has_value_q;", "!has_key_q;"),
    # A frame begins before its last beat has left the memory.
    ("frame_collector", {}, "frame_collector", "LevelWidth'(ends_q[1])", "LevelWidth'(ends_q[0])"),
    # The sum of a key that is too long for any table waits for its end, which waits for the sum.
    ("front_lane", {}, "front_lane", "(key.last || beat_q == Longest)", "key.last"),
    # A key's sum continues from the previous key's.
    ("front_lane", {}, "front_lane", "<= key.last ? '0 : key_sum;", "<= key_sum;"),
    # A frame that the buffer dropped is waited for.
    ("front_lane", {}, "front_lane", ".data_i(is_kept)", ".data_i(1'b1)"),
]
